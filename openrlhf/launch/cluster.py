"""The Ray cluster of a run: the one it was given, or one of its own that goes away with it.

Invariant: a cluster that this process did not start is never shut down, and a run that starts its own keeps away from
every other one on the machine (own ports, own temporary folder, 127.0.0.1 only on the CPU platform).
"""

import math
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants

import openrlhf
from openrlhf import platforms
from openrlhf.launch import ray_probe, watchdog
from openrlhf.launch.problem import LaunchError, Problem, cause
from openrlhf.launch.resources import Plan

# As upstream passes them to its workers, with the same defaults; a user's own value wins.
WORKER_DEFAULTS = {
    "TOKENIZERS_PARALLELISM": "true",
    "NCCL_DEBUG": "WARN",
    "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1",
}
# What else a worker must agree on with the driver. A list, since whole environments break Ray's agents.
PASSED_ON = (platforms.VARIABLE, platforms.CPU_KV_CACHE_VARIABLE)
AGENT_PREFIXES = ("AGENT_", "MATH_", "SEARCH_", "BFCL_")  # settings of agent files
# Ray's object store of a CPU run: batches are small, and /dev/shm of a container often is as well.
CPU_OBJECT_STORE_BYTES = 512 << 20


def worker_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Environment variables for every worker of the run."""
    passed_on = {name: environ[name] for name in environ if name in PASSED_ON or name.startswith(AGENT_PREFIXES)}
    return {name: environ.get(name, default) for name, default in WORKER_DEFAULTS.items()} | passed_on


@contextmanager
def connected(plan: Plan) -> Iterator[None]:
    """Connects to the cluster at RAY_ADDRESS, to a running local one, or starts one with what `plan` asks for.

    `RAY_ADDRESS=local` always starts one. On the way out the connection is closed, and with it a cluster of our own.
    """
    runtime_env = {"env_vars": worker_environment()}
    address = os.environ.get("RAY_ADDRESS")
    temporary = None
    try:
        if address == "local" or not _joined(runtime_env):
            temporary = _start(plan, runtime_env)
        signal.signal(signal.SIGTERM, _exit_on_sigterm)  # after ray.init, whose native handler just dies
        yield
    finally:
        watchdog.stop()
        ray.shutdown()
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _start(plan: Plan, runtime_env: dict[str, Any]) -> str | None:
    """Starts a cluster; returns its temporary folder if that is ours to remove."""
    os.environ["PYTHONPATH"] = os.pathsep.join(_import_path())
    if platforms.name() == "cuda":
        ray.init(address="local", runtime_env=runtime_env)
        return None
    ray_constants.ENABLE_RAY_CLUSTER = (
        False  # Ray's switch for "this machine only": it listens on the loopback address
    )
    # Socket paths are limited to 107 characters, so the folder can't lie in the run's own.
    temporary = tempfile.mkdtemp(prefix="orlhf-", dir=os.environ.get("RAY_TMPDIR", "/tmp"))
    ray.init(address="local", runtime_env=runtime_env, **_own_cluster(plan, temporary))
    return temporary


def _import_path() -> list[str]:
    """Where the workers of our own cluster look first: a plain checkout isn't on anyone's path but the driver's."""
    inherited = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    checkout = str(Path(openrlhf.__file__).resolve().parents[1])
    return inherited if checkout in inherited else [checkout, *inherited]


def _joined(runtime_env: dict[str, Any]) -> bool:
    fault = ray_probe.foreign(os.environ.get("RAY_ADDRESS", ""))
    if fault is None:
        try:
            ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), runtime_env=runtime_env)
            return True
        except (ConnectionError, ValueError) as error:  # nobody there, or no address at all
            if "RAY_ADDRESS" not in os.environ:
                return False
            fault = f"no cluster can be joined there ({cause(error)})"
    raise LaunchError(Problem("RAY_ADDRESS", fault, "give a running cluster's HOST:PORT, `local`, or unset it"))


def _own_cluster(plan: Plan, temporary: str) -> dict[str, Any]:
    """Arguments of ray.init for a cluster on this machine; its GPUs are only numbers that Ray counts down."""
    return {
        "num_cpus": plan.cpus,
        "num_gpus": math.ceil(plan.gpus),
        "include_dashboard": False,
        "object_store_memory": CPU_OBJECT_STORE_BYTES,
        "_temp_dir": temporary,
    }


def _exit_on_sigterm(signum: int, frame: Any) -> None:
    raise SystemExit(128 + signum)


def resources() -> tuple[dict[str, float], list[dict[str, float]]]:
    """What the cluster has in all, and what each of its live nodes has."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return ray.cluster_resources(), nodes
