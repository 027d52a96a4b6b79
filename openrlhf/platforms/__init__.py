"""Which device platform this process runs on, decided once, when `openrlhf` is imported.

`OPENRLHF_PLATFORM` is `auto` (default), `cpu` or `cuda`. `auto` means the CPU platform exactly where no CUDA device is
visible and the installed vLLM isn't a CUDA build: Ray hides every device from actors that ask for no GPU, and those
must run upstream's code as it is. On CUDA nothing of `platforms.cpu` is imported.
"""

import importlib.metadata
import os

VARIABLE = "OPENRLHF_PLATFORM"
CPU_KV_CACHE_VARIABLE = "OPENRLHF_CPU_KV_CACHE_MIB"  # read by platforms.cpu, passed on to the workers


def name() -> str:
    """`cpu` or `cuda`. Raises ValueError for another value of OPENRLHF_PLATFORM."""
    wanted = os.environ.get(VARIABLE, "auto")
    if wanted not in ("auto", "cpu", "cuda"):
        raise ValueError(f"{VARIABLE}={wanted!r}: choose auto, cpu or cuda")
    if wanted != "auto":
        return wanted
    return "cuda" if _installed("vllm") or _cuda_visible() else "cpu"


def apply() -> None:
    """Installs the CPU platform where it is the one to use; does nothing on CUDA."""
    if name() == "cpu":
        from openrlhf.platforms import cpu

        cpu.install()


def _installed(distribution: str) -> bool:
    try:
        importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _cuda_visible() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()
