"""The trainer's side of a weight sync, on every rank of the policy; rank 0 sends.

Invariant: `stage`, `send` and `buckets` are called on all ranks in the same order. What `update_infos` lists is what
the engines are given, bucket by bucket. Shared memory: everything is written before the engines pause, stays until the
next `stage`, so that a restarted engine can load it, and is removed at `close`, at exit, or by the next run. NCCL:
nothing is staged; buckets are broadcast while the engines receive.
"""

import atexit
import dataclasses
import os
import shutil
import socket
import tempfile
import threading
from pathlib import Path
from typing import Any, Protocol

import ray
import torch

from openrlhf.trainer.ray.weight_source import NamedTensor, WeightSource
from openrlhf.trainer.ray.weight_transfer import SHARED_MEMORY, transfer_backend

SHM_FOLDER = Path("/dev/shm")
PREFIX = "orlhf-weights-"
ALIGNMENT = 64  # bytes; tensors of any type may start there
Place = tuple[str, str, list[int], int]  # name, type, shape and offset in bytes of a tensor in its file


class WeightSender(Protocol):
    """How weights get to the engines. `staged`: an engine can load them again without the trainer."""

    staged: bool

    def connect(self, *, n_engines: int, engine_size: int) -> list[dict[str, Any]]:
        """What each engine's `init_weight_transfer_engine` needs; `engine_size` workers in each."""

    def stage(self) -> None:
        """Prepares the current weights while the engines still generate."""

    def update_infos(self) -> list[dict[str, Any]]:
        """vLLM's `update_info` of each bucket; meaningful on rank 0."""

    def send(self) -> None:
        """Sends while the engines receive."""

    def close(self) -> None:
        """Releases everything."""


def make_sender(source: WeightSource) -> WeightSender:
    """The sender for this platform."""
    return ShmSender(source) if transfer_backend() == SHARED_MEMORY else NcclSender(source)


def _sends() -> bool:
    return not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0


class ShmSender:
    """One file per bucket in shared memory, overwritten in place at each stage. Engines run on the same machine."""

    staged = True

    def __init__(self, source: WeightSource, *, folder: Path = SHM_FOLDER) -> None:
        self._source = source
        self._parent = folder
        self._folder: Path | None = None
        self._infos: list[dict[str, Any]] = []
        self._contents: list[torch.Tensor] = []  # the files, mapped once: a new mapping costs a fault for every page

    def connect(self, *, n_engines: int, engine_size: int) -> list[dict[str, Any]]:
        """See `WeightSender`."""
        return [{"complete": self._source.complete}] * n_engines

    def stage(self) -> None:
        """Raises OSError, naming folder and bytes, where the weights don't fit."""
        wanted = _sends()
        if wanted and self._folder is None:
            self._open()
        for i, bucket in enumerate(self._source.buckets(wanted=wanted)):
            if wanted:
                _write(self._contents[i], self._infos[i]["tensors"], bucket)

    def update_infos(self) -> list[dict[str, Any]]:
        """See `WeightSender`."""
        return self._infos

    def send(self) -> None:
        """Everything lies there already."""

    def close(self) -> None:
        """Removes the files."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder, self._infos, self._contents = None, [], []

    def _open(self) -> None:
        _remove_abandoned(self._parent)
        layouts = [_layout(bucket) for bucket in self._source.metadata()]
        needed, free = sum(size for size, _ in layouts), shutil.disk_usage(self._parent).free
        if needed > free:
            raise OSError(
                f"weights of {needed} bytes don't fit into {self._parent}, which has {free} free: make it larger "
                "(docker: --shm-size)"
            )
        self._folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=self._parent))
        atexit.register(self.close)
        self._infos = [
            {"path": str(self._folder / str(i)), "size": size, "tensors": tensors}
            for i, (size, tensors) in enumerate(layouts)
        ]
        self._contents = [
            torch.from_file(info["path"], shared=True, size=info["size"], dtype=torch.uint8) for info in self._infos
        ]


def _layout(bucket: list[NamedTensor]) -> tuple[int, list[Place]]:
    """Size of a bucket's file, and where each tensor lies in it."""
    tensors: list[Place] = []
    end = 0
    for name, tensor in bucket:
        start = -(-end // ALIGNMENT) * ALIGNMENT
        tensors.append((name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), start))
        end = start + tensor.numel() * tensor.element_size()
    return end, tensors


def _write(content: torch.Tensor, places: list[Place], bucket: list[NamedTensor]) -> None:
    for (_, tensor), (_, _, _, start) in zip(bucket, places, strict=True):
        n_bytes = tensor.numel() * tensor.element_size()
        content[start : start + n_bytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)


def _remove_abandoned(parent: Path) -> None:
    """Folders of processes that are gone: a killed run could not remove its own."""
    for folder in parent.glob(f"{PREFIX}*"):
        pid = folder.name.removeprefix(PREFIX).split("-")[0]
        if pid.isdigit() and not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)


class NcclSender:
    """vLLM's packed NCCL broadcast: rank 0 of one group with the workers of all engines."""

    staged = False

    def __init__(self, source: WeightSource) -> None:
        self._source = source
        self._joining: threading.Thread | None = None
        self._group: Any = None
        self._failure: BaseException | None = None

    def connect(self, *, n_engines: int, engine_size: int) -> list[dict[str, Any]]:
        """Joins beside the engines, which are given their part by the caller; `send` waits for it."""
        if not _sends():
            return []
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo, NCCLWeightTransferInitInfo

        self.close()
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        address, size = ray.util.get_node_ip_address(), n_engines * engine_size + 1
        own = NCCLTrainerInitInfo(rank=0, master_address=address, master_port=port, world_size=size)
        device = torch.accelerator.current_device_index()
        self._joining = threading.Thread(target=self._join, args=(own, device), daemon=True)
        self._joining.start()
        infos = [
            NCCLWeightTransferInitInfo(
                master_address=address,
                master_port=port,
                rank_offset=1 + i * engine_size,
                world_size=size,
                packed=own.packed,
                packed_buffer_size_bytes=own.packed_buffer_size_bytes,
                packed_num_buffers=own.packed_num_buffers,
            )
            for i in range(n_engines)
        ]
        return [{k: v for k, v in dataclasses.asdict(info).items() if v is not None} for info in infos]

    def _join(self, own: Any, device: int) -> None:
        from vllm.distributed.weight_transfer.nccl_common import trainer_init

        try:
            torch.accelerator.set_device_index(device)  # a new thread starts on device 0
            self._own, self._group = own, trainer_init(own)
        except BaseException as error:  # raised again where it is waited for
            self._failure = error

    def stage(self) -> None:
        """Nothing can be sent ahead."""

    def update_infos(self) -> list[dict[str, Any]]:
        """See `WeightSender`."""
        return [
            {
                "names": [name for name, _ in bucket],
                "dtype_names": [str(tensor.dtype).removeprefix("torch.") for _, tensor in bucket],
                "shapes": [list(tensor.shape) for _, tensor in bucket],
            }
            for bucket in self._source.metadata()
        ]

    def send(self) -> None:
        """Broadcasts every bucket; all ranks take part in the gathering."""
        wanted = _sends()
        if wanted and self._joining is not None:
            self._joining.join()
            if self._failure is not None:
                raise self._failure
        for bucket in self._source.buckets(wanted=wanted):
            if wanted:
                self._broadcast(bucket)

    def _broadcast(self, bucket: list[NamedTensor]) -> None:
        from vllm.distributed.weight_transfer.packed_tensor import packed_nccl_broadcast_producer

        packed_nccl_broadcast_producer(
            iterator=iter(bucket),
            group=self._group,
            src=0,
            post_iter_func=lambda item: item[1],
            buffer_size_bytes=self._own.packed_buffer_size_bytes,
            num_buffers=self._own.packed_num_buffers,
        )

    def close(self) -> None:
        """Leaves the group."""
        if self._group is not None:
            self._group.destroy()
        self._joining = self._group = self._failure = None
