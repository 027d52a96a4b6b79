"""SmolLM2 plays episodes of all tasks: `python smollm2_episodes.py MODEL SEARCH_FOLDER` prints what was said.

A process of its own: the platform comes before vLLM, and an engine ends best with its process.
"""

import asyncio
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("OPENRLHF_CPU_KV_CACHE_MIB", "256")  # for prompts of two thousand tokens

import openrlhf  # noqa: E402, F401  (the CPU platform comes before vLLM)

TASKS = {"math": 512, "search": 512, "bfcl": 3072}  # tokens of an episode; functions are described at length
TURN = 12  # tokens of a turn: about five a second


def agent(task: str) -> str:
    return str(ROOT / "examples" / "python" / f"agent_func_{task}.py")


def rows(task: str, search: Path) -> list[dict[str, str]]:
    """Two rows of the task's own seeded data."""
    if task == "search":
        return [json.loads(line) for line in (search / "eval.jsonl").read_text().splitlines()[:2]]
    if task == "math":
        from examples.tasks import math

        return math.problems(2, seed=0)
    from openrlhf.agents.bfcl_data import find

    found = (find("multi_turn_base_105"), find("multi_turn_miss_func_105"))  # few functions, so short prompts
    return [{"prompt": one.message(0), "label": json.dumps({"id": one.id})} for one in found]


async def main(model: str, search: Path) -> dict[str, Any]:
    from fake_encoder import fake_encoder

    from openrlhf.agents import retrieval
    from openrlhf.trainer.ray.episode_engine import EpisodeEngine

    retrieval.sentence_encoder = lambda name, **_: fake_encoder
    sampling = {"temperature": 1.0, "top_p": 1.0, "logprobs": 0, "max_tokens": None}
    limit = max(TASKS.values())
    engine = await EpisodeEngine.start(agent_func_path=agent("math"), model=model, max_length=limit, sampling=sampling)
    actor, seen = engine._actor, []
    generate = actor.generate

    async def watched(prompt_token_ids: list[int], sampling: Any, **more: Any) -> Any:
        sampling.max_tokens = min(sampling.max_tokens, TURN)
        given, output = list(prompt_token_ids), await generate(prompt_token_ids, sampling, **more)
        seen.append({"given": given, "generated": list(output.outputs[0].token_ids)})
        return output

    actor.generate = watched
    found = {}
    for task, engine._max_length in TASKS.items():
        actor.executor = runpy.run_path(agent(task))["AgentExecutor"]()
        data = rows(task, search)
        seen.clear()
        responses = await asyncio.gather(*(engine.play(row["prompt"], row["label"]) for row in data))
        kept = ("observation_tokens", "action_ranges", "rollout_log_probs", "truncated", "extra_logs")
        episodes = [
            {"prompt": row["prompt"], "score": float(r["scores"]), "text": engine.text(r["observation_tokens"])}
            | {key: r[key] for key in kept}
            for row, r in zip(data, responses, strict=True)
        ]
        found[task] = {"episodes": episodes, "seen": list(seen)}
    engine.close()
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1], Path(sys.argv[2])))))
