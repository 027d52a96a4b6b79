"""How long vLLM takes from a fresh Python to its first token on the CPU: as it comes, and on the CPU platform.

    python bench/engine_start.py [MODEL_FOLDER] [--rounds N] [--json FILE]

Both ways run in turns on the same machine with the same model, float32 and KV cache; printed are medians. "as it
comes" is vLLM's own executor and start method; "platform" is item 9 of docs/overlay.md: one forked engine process that
inherits the imports, the worker inside it, and no compiler call at the first token.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
WAYS = ("as it comes", "platform")
ITEM_9 = ("vllm.engine.arg_utils", "vllm.utils.system_utils")


def start(way: str, model: str, began: float) -> dict[str, float]:
    """Starts an engine in this process, generates one token; seconds since `began` at either point."""
    from openrlhf.platforms import cpu

    if way == "as it comes":
        for name in ITEM_9:
            del cpu.PATCHES[name]  # the hooks look here when the module is imported
        os.environ.pop("TORCHDYNAMO_DISABLE", None)
    import asyncio

    import vllm

    async def first_token() -> dict[str, float]:
        arguments = vllm.AsyncEngineArgs(
            model=model,
            dtype="float32",
            enforce_eager=True,
            max_model_len=256,
            kv_cache_memory_bytes=256 << 20,
            block_size=cpu.KV_BLOCK_TOKENS,
            distributed_executor_backend="uni",
        )
        engine = vllm.AsyncLLMEngine.from_engine_args(arguments)
        ready = time.time() - began
        sampling = vllm.SamplingParams(max_tokens=1, logprobs=0)
        async for _ in engine.generate({"prompt_token_ids": [5, 6, 7]}, sampling, request_id="0"):
            pass
        engine.shutdown()
        return {"ready": ready, "first token": time.time() - began}

    return asyncio.run(first_token())


def report(seconds: Mapping[str, Sequence[float]]) -> str:
    """The medians and their ratio."""
    before, after = (statistics.median(seconds[way]) for way in WAYS)
    return (
        f"median to the first token: {before:.1f} s as it comes, {after:.1f} s on the platform, {before / after:.1f}x"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="folder of a Hugging Face model (default: the small model)")
    parser.add_argument("--rounds", type=int, default=3, help="starts of each way (default 3)")
    parser.add_argument("--json", type=Path, help="file for all numbers")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        print(json.dumps(start(args.way, args.model, float(os.environ["BENCH_BEGAN"]))), flush=True)
        os._exit(0)
    model = args.model
    if model is None:
        from examples.tiny.build import build

        model = str(build(report=lambda text: print(f"small model: {text}", flush=True)).model)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(args.rounds):
        for way in WAYS:
            environment = os.environ | {"BENCH_BEGAN": f"{time.time()}", "PYTHONPATH": str(ROOT)}
            command = [sys.executable, "-W", "ignore", __file__, model, "--way", way]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
            if not lines:
                sys.exit(f"{way}: no engine came up:\n{done.stderr[-2000:]}")
            result = json.loads(lines[-1])
            seconds[way].append(result["first token"])
            shown = ", ".join(f"{name} {value:.1f} s" for name, value in result.items())
            print(f"round {number + 1}, {way}: {shown}", flush=True)
    print(report(seconds))
    if args.json:
        args.json.write_text(json.dumps(seconds, indent=1))


if __name__ == "__main__":
    main()
