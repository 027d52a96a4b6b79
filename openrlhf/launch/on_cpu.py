"""Flags that the CPU platform can't serve: they need a GPU's kernels, its memory, or bfloat16.

Invariant: looked at on the CPU platform only. The platform's own defaults (float32, sdpa, gloo) pass. Pure.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace

from openrlhf.launch import reading
from openrlhf.launch.problem import Problem


@dataclass(frozen=True)
class Limit:
    """`flag` is refused when `uses` says that the run would rely on it."""

    flag: str
    uses: Callable[[SimpleNamespace], bool]
    what: str
    fix: str = "drop it here"


LIMITS = (
    Limit("ds.packing_samples", lambda a: a.ds.packing_samples, "needs flash-attn and a GPU"),
    Limit("ds.ring_attn_size", lambda a: a.ds.ring_attn_size > 1, "needs flash-attn and GPUs", "use 1 here"),
    Limit(
        "train.dynamic_batch_enable", lambda a: a.train.dynamic_batch_enable, "packs samples, for which it needs a GPU"
    ),
    Limit(
        "ds.attn_implementation",
        lambda a: "flash" in a.ds.attn_implementation,
        "names a flash attention, which needs a GPU",
        "drop it (the default here is sdpa), or use eager",
    ),
    Limit("ds.load_in_4bit", lambda a: a.ds.load_in_4bit, "needs bitsandbytes and a GPU"),
    Limit("ds.use_liger_kernel", lambda a: a.ds.use_liger_kernel, "needs Triton and a GPU"),
    Limit("ds.deepcompile", lambda a: a.ds.deepcompile, "needs DeepSpeed operators that exist for GPUs only"),
    Limit("ds.tensor_parallel_size", lambda a: a.ds.tensor_parallel_size > 1, "above 1 needs bfloat16", "use 1 here"),
    Limit(
        "ds.enable_sleep",
        lambda a: a.ds.enable_sleep and a.ds.zero_stage == 3,
        "with ZeRO-3 moves the states of DeepSpeed's fused Adam, which is a GPU's",
        "drop it, or use --ds.zero_stage 2",
    ),
    Limit(
        "vllm.tensor_parallel_size",
        lambda a: a.vllm.tensor_parallel_size > 1,
        "above 1 runs an engine's workers by Ray, which vLLM refuses on a CPU",
        "use 1 here, and more --vllm.num_engines",
    ),
    Limit(
        "ds.param_dtype",
        lambda a: a.ds.param_dtype != "fp32",
        "isn't fp32, and the engines hold float32 weights on a CPU: the first weight sync would fail",
        "drop it (the default here is fp32)",
    ),
    Limit(
        "vllm.enable_sleep",
        lambda a: a.vllm.enable_sleep and reading.engines_share_gpus(a),  # upstream turns it off otherwise
        "frees GPU memory, and vLLM refuses to start with it on a CPU",
    ),
    Limit(
        "vllm.sync_backend",
        lambda a: a.vllm.sync_backend != "gloo",
        "can't send weights on a CPU",
        "drop it (the default here is gloo)",
    ),
    Limit("vllm.sync_with_ray", lambda a: a.vllm.sync_with_ray, "can't reach vLLM's engine process on a CPU"),
)


def check(args: SimpleNamespace) -> Iterator[Problem]:
    for limit in LIMITS:
        if limit.uses(args):
            found = reading.value(args, limit.flag)
            text = "" if isinstance(found, bool) else f"{found} "
            yield Problem(f"--{limit.flag}", f"{text}{limit.what}, and this is the CPU platform", limit.fix)
