"""After a weight sync the engine computes what the trainer's model computes."""

import models
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("kind", models.KINDS)
def test_log_probs_are_the_trainers(run_program, tmp_path, kind):
    """Tied and untied embeddings, merged LoRA, experts; faulty updates are told, and a repeated one repairs."""
    models.save(kind, 1, tmp_path)
    seen = run_program("arriving_weights", str(tmp_path), kind)
    assert seen["before"] > 0.1 and seen["after"] < 1e-4
    assert seen["buckets"] > 3
    assert "instead of" in seen["cut"] and "left out" in seen["missing"]
