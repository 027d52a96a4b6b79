"""Every number that decides what the tiny model and its data are, and the hash that names them.

Invariant: two builds with the same `Recipe.key()` make the same material. The key covers the recipe's fields, the code
that turns them into files, and the versions of the packages that do the work.
"""

import hashlib
import importlib.metadata
import json
from dataclasses import asdict, dataclass
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
# A change in one of these files can change the material without a change in the recipe.
SOURCES = (
    "upstream.txt",
    "examples/python/agent_func_calculator.py",
    "examples/python/reward_func_math.py",
    "examples/tiny/build.py",
    "examples/tiny/measure.py",
    "examples/tiny/model.py",
    "examples/tiny/recipe.py",
    "examples/tiny/sft.py",
    "examples/tiny/tasks.py",
)
PACKAGES = ("deepspeed", "reasoning_gym", "tokenizers", "torch", "transformers")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The defaults give a model that is worth training further: it knows the form of an answer and is often wrong."""

    seed: int = 17

    # Data. The single-turn problems are reasoning-gym's chain_sum.
    terms: tuple[int, int] = (3, 3)
    digits: int = 1
    draws: int = 6000
    eval_problems: int = 256
    pairs: int = 512
    sft_sums: int = 2400
    sft_games: int = 900
    # The demonstrations are careless, so that the model's faults don't depend on how far training happened to get:
    # the share of worked steps with a slip in them, and of calls made without looking.
    slip: float = 0.05
    random_call: float = 0.2

    # Model.
    vocabulary: int = 384
    hidden: int = 256
    intermediate: int = 448
    layers: int = 2
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 32  # vLLM's CPU attention takes multiples of 32
    context: int = 512
    initial_spread: float = 0.06  # of the weights; the usual 0.02 learns these small tables much later

    # Warm start.
    sft_epochs: int = 1
    sft_batch: int = 8
    sft_learning_rate: float = 1.5e-3

    # Both rates must end here, measured at temperature 1.
    solve_rate: tuple[float, float] = (0.2, 0.6)
    game_rate: tuple[float, float] = (0.1, 0.5)

    def key(self) -> str:
        """A short hash for the name of the cache folder."""
        parts = {
            "recipe": asdict(self),
            "sources": {name: hashlib.sha256((_ROOT / name).read_bytes()).hexdigest() for name in SOURCES},
            "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
