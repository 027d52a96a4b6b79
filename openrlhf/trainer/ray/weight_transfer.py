"""Weights through shared memory: vLLM's weight-transfer interface where there is no NCCL.

The module is imported in every vLLM worker (it is named by the worker extension), which registers the backend `shm`.
Invariants: a file that is not exactly as long as announced is not loaded; an update that leaves a parameter of the
model as it was ends with an error, unless it was announced as partial. After an error the same update may be repeated.

In: one file per bucket, written by `weight_sender`. Out: the model's weights.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from openrlhf import platforms

SHARED_MEMORY = "shm"


def transfer_backend() -> str:
    """vLLM's name of the backend for this platform: `shm` on CPUs, `nccl` on CUDA."""
    return SHARED_MEMORY if platforms.name() == "cpu" else "nccl"


@dataclass
class ShmInitInfo(WeightTransferInitInfo):
    """`complete`: each update brings every parameter of the model."""

    complete: bool = True


@dataclass
class ShmUpdateInfo(WeightTransferUpdateInfo):
    """One bucket. `tensors` lists (name, dtype, shape, offset in bytes) of what lies in the file, `size` its bytes."""

    path: str
    size: int
    tensors: list[tuple[str, str, list[int], int]]


class ShmWeightTransferEngine(WeightTransferEngine[ShmInitInfo, ShmUpdateInfo]):
    """The receiving side. vLLM makes one per worker."""

    init_info_cls = ShmInitInfo
    update_info_cls = ShmUpdateInfo
    supports_draft_weight_update = False
    _complete = True
    _loaded: frozenset[str] = frozenset()

    def init_transfer_engine(self, init_info: ShmInitInfo) -> None:
        """Nothing to connect."""
        self._complete = init_info.complete

    def start_weight_update(self) -> None:
        """Forgets what an earlier, perhaps failed update has loaded."""
        self._loaded = frozenset()

    def receive_weights(self, update_info: ShmUpdateInfo) -> None:
        """Loads one bucket. Raises ValueError for a file of the wrong size."""
        found = os.path.getsize(update_info.path)
        if found != update_info.size:
            raise ValueError(f"{update_info.path} has {found} bytes instead of {update_info.size}")
        self._loaded |= set(self.model.load_weights(_tensors(update_info)))

    def finish_weight_update(self) -> None:
        """Raises ValueError when a parameter has not come."""
        missing = sorted({name for name, _ in self.model.named_parameters()} - self._loaded)
        if self._complete and missing:
            raise ValueError(f"the weight update left out {len(missing)} parameters: {', '.join(missing[:5])}")
        _pack_experts(self.model)

    def shutdown(self) -> None:
        """Nothing to release: a file is open only while it is read."""


def _pack_experts(model: torch.nn.Module) -> None:
    """vLLM's CPU kernel for experts wants their weights packed; new ones have just come as a checkpoint has them."""
    for layer in model.modules():
        kernel = getattr(getattr(layer, "quant_method", None), "moe_kernel", None)
        if kernel is not None:
            kernel.fused_experts.process_weights_after_loading(layer)


def _tensors(bucket: ShmUpdateInfo) -> Iterator[tuple[str, torch.Tensor]]:
    content = torch.from_file(bucket.path, shared=False, size=bucket.size, dtype=torch.uint8)
    for name, dtype, shape, offset in bucket.tensors:
        of_type: torch.dtype = getattr(torch, dtype)
        n_bytes = torch.Size(shape).numel() * of_type.itemsize
        yield name, content[offset : offset + n_bytes].view(of_type).view(shape)


if SHARED_MEMORY not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(SHARED_MEMORY, ShmWeightTransferEngine)
