"""What a weight sync costs on the CPU: one parameter at a time, in buckets through shared memory, and the bytes alone.

    python bench/weight_sync.py [--rounds N] [--width N] [--json FILE]

All three in turns in one run, on one model of 300 tensors and one real engine; printed are medians.

one by one: upstream's `broadcast_to_vllm` as it stands; a call to the engine's actor, one to its worker and a gloo
            broadcast per parameter.
buckets:    stage, load and resume, as the pool pipeline does it. "paused" is the part in which nothing is generated.
raw:        one gloo broadcast of the same bytes between two processes, and nothing else.

Round trips are counted: calls to the engine's actor, and calls from there to the engine's core process.
The smaller the model (`--width`), the more of the time in buckets is what every sync costs, whatever its bytes.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ["PYTHONPATH"] = str(ROOT)  # for Ray's workers
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import ray  # noqa: E402
import torch  # noqa: E402

import openrlhf  # noqa: E402, F401  (the CPU platform comes before vLLM)
from pace.table import aligned  # noqa: E402

LAYERS = 27  # of eleven tensors, and three more
GOALS = {"round trips": 10.0, "one by one / buckets": 10.0, "buckets / raw": 1.5}


def make_model(width: int) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=1024,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=width // 4,
        max_position_embeddings=256,
        tie_word_embeddings=False,
    )
    return Qwen3ForCausalLM(config)


def engine_actor() -> Any:
    """The pool pipeline's engine actor, which counts its calls to the engine's core process."""
    from openrlhf.trainer.ray.versioned_rollout import RolloutRayActor

    class CountingActor(RolloutRayActor):
        async def count_calls(self) -> None:
            core = self.llm.engine_core
            call = core.call_utility_async
            self.calls = 0

            async def counted(*args: Any) -> Any:
                self.calls += 1
                return await call(*args)

            core.call_utility_async = counted

        async def calls_so_far(self) -> int:
            return self.calls

    return ray.remote(CountingActor)


class CountingHandle:
    """An actor's handle that counts the calls made through it."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self.calls = 0

    def __getattr__(self, method: str) -> Any:
        def remote(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return getattr(self._handle, method).remote(*args, **kwargs)

        return SimpleNamespace(remote=remote)


@ray.remote(num_cpus=0)
class Receiver:
    """The other end of the raw broadcast."""

    def join(self, port: int) -> None:
        self._group = join(port, 1)

    def receive(self, n_bytes: int) -> None:
        answer = torch.zeros(1)
        self._group.broadcast(answer, src=1)  # ready
        self._group.broadcast(torch.empty(n_bytes, dtype=torch.uint8), src=0)
        self._group.broadcast(answer, src=1)


def join(port: int, rank: int) -> Any:
    from openrlhf.utils.distributed_util import stateless_init_process_group

    return stateless_init_process_group("127.0.0.1", port, rank, 2, None)


def free_port() -> int:
    import socket

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


class Raw:
    def __init__(self, n_bytes: int) -> None:
        self._receiver = Receiver.remote()
        port = free_port()
        joined = self._receiver.join.remote(port)
        self._group = join(port, 0)
        ray.get(joined)
        self._content, self._answer = torch.zeros(n_bytes, dtype=torch.uint8), torch.zeros(1)

    def __call__(self) -> dict[str, float]:
        done = self._receiver.receive.remote(self._content.numel())
        self._group.broadcast(self._answer, src=1)
        began = time.perf_counter()
        self._group.broadcast(self._content, src=0)
        self._group.broadcast(self._answer, src=1)
        took = time.perf_counter() - began
        ray.get(done)
        return {"total": took}


class OneByOne:
    """Upstream's own methods, on what they read of an `ActorPPOTrainer`."""

    def __init__(self, model: Any, engine: Any) -> None:
        from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer

        vllm = {"num_engines": 1, "tensor_parallel_size": 1, "sync_backend": "gloo", "enable_prefix_caching": True}
        args = SimpleNamespace(vllm=SimpleNamespace(**vllm), ds=SimpleNamespace(zero_stage=2, tensor_parallel_size=1))
        self._trainer = SimpleNamespace(
            strategy=SimpleNamespace(args=args),
            vllm_engines=[engine],
            use_cuda_ipc=False,
            actor=SimpleNamespace(model=SimpleNamespace(module=model), is_vlm=False),
        )
        ActorPPOTrainer._init_vllm_sync_group(self._trainer, "gloo")
        self._send = ActorPPOTrainer.broadcast_to_vllm

    def __call__(self) -> dict[str, float]:
        began = time.perf_counter()
        self._send(self._trainer)
        return {"total": time.perf_counter() - began}


class Buckets:
    def __init__(self, model: Any, engine: Any, bucket_bytes: int) -> None:
        from openrlhf.trainer.ray.weight_sender import make_sender
        from openrlhf.trainer.ray.weight_source import WeightSource

        self._sender = make_sender(WeightSource(model, zero_stage=0, bucket_bytes=bucket_bytes))
        self._engine = engine
        (info,) = self._sender.connect(n_engines=1, engine_size=1)
        ray.get(engine.connect_weights.remote(info))
        ray.get(engine.serve.remote(0, weights="own"))
        self._version = 0

    def __call__(self) -> dict[str, float]:
        self._version += 1
        began = time.perf_counter()
        self._sender.stage()
        staged = time.perf_counter()
        loaded = self._engine.load_weights.remote(self._version, self._sender.update_infos())
        self._sender.send()
        ray.get(loaded)
        ray.get(self._engine.serve.remote(self._version))
        ended = time.perf_counter()
        return {"total": ended - began, "stage": staged - began, "paused": ended - staged}

    def close(self) -> None:
        self._sender.close()


def measure(args: argparse.Namespace, folder: str) -> dict[str, Any]:
    model = make_model(args.width)
    model.save_pretrained(folder)
    parameters = list(model.parameters())
    n_bytes = sum(p.numel() * p.element_size() for p in parameters)
    from pace.config import PaceConfig

    actor = (
        engine_actor()
        .options(num_cpus=0)
        .remote(
            model=folder,
            pace=PaceConfig(enable=True),
            num_gpus=1,
            distributed_executor_backend="uni",
            dtype="bfloat16",
            enforce_eager=True,
            enable_prefix_caching=True,
            max_model_len=256,
            skip_tokenizer_init=True,
            worker_extension_cls="openrlhf.trainer.ray.vllm_worker_wrap.WorkerWrap",
        )
    )
    ray.get(actor.count_calls.remote())
    handle = CountingHandle(actor)
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1)
    buckets = Buckets(model, handle, args.bucket_mib << 20)
    ways = {"one by one": OneByOne(model, handle), "buckets": buckets, "raw": Raw(n_bytes)}
    seconds: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    trips: dict[str, list[int]] = {way: [] for way in ways}
    for number in range(args.rounds + 1):
        for way, run in ways.items():
            with torch.no_grad():
                parameters[0].add_(1e-3)
            calls = handle.calls, ray.get(actor.calls_so_far.remote())
            took = run()
            made = handle.calls - calls[0] + ray.get(actor.calls_so_far.remote()) - calls[1]
            if number:  # the first round warms up
                seconds[way].append(took)
                trips[way].append(made)
    buckets.close()
    result = {
        way: {part: statistics.median(one[part] for one in rounds) for part in rounds[0]}
        | {"round trips": statistics.median(trips[way])}
        for way, rounds in seconds.items()
    }
    return {"tensors": len(parameters), "bytes": n_bytes, "rounds": args.rounds, "ways": result}


def ratios(ways: dict[str, dict[str, float]]) -> dict[str, float]:
    one, ours, raw = ways["one by one"], ways["buckets"], ways["raw"]
    return {
        "round trips": one["round trips"] / ours["round trips"],
        "one by one / buckets": one["total"] / ours["total"],
        "buckets / raw": ours["total"] / raw["total"],
        "paused / raw": ours["paused"] / raw["total"],
    }


def report(result: dict[str, Any]) -> str:
    """The numbers as a table, and the ratios beside their goals."""
    rows = [["", "ms", "of it staged", "of it paused", "round trips"]]
    for way, row in result["ways"].items():
        parts = [f"{1e3 * row[part]:.1f}" if part in row else "-" for part in ("total", "stage", "paused")]
        rows.append([way, *parts, f"{row['round trips']:.0f}"])
    lines = [f"{result['tensors']} tensors, {result['bytes'] / 1e6:.1f} MB, medians of {result['rounds']} rounds"]
    lines += [aligned(rows)]
    for name, ratio in result["ratios"].items():
        lines.append(f"{name}: {ratio:.2f}" + (f" (goal {GOALS[name]:g})" if name in GOALS else ""))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="of each way, after one that warms up (default 9)")
    parser.add_argument("--width", type=int, default=256, help="hidden size, a multiple of 128 (default 256)")
    parser.add_argument("--bucket_mib", type=int, default=256, help="bucket size (default 256)")
    parser.add_argument("--json", type=Path, help="write the result there, too")
    args = parser.parse_args()
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        with tempfile.TemporaryDirectory() as folder:
            result = measure(args, folder)
    finally:
        ray.shutdown()
    result["ratios"] = ratios(result["ways"])
    print(report(result))
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
