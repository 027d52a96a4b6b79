"""What a weight sync sends: the policy's weights in buckets, under the names of a checkpoint, which vLLM loads.

Invariants: every rank iterates the same buckets in the same order, because gathering ZeRO-3 shards is collective; the
trained weights are never changed; together the buckets hold every weight once, and nothing but weights (an adapter is
merged into its base for the message only).

In: the module that DeepSpeed trains. Out: lists of (name, full tensor), valid until the next bucket is asked for.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import deepspeed
import torch
from peft.tuners.lora import LoraLayer
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

NamedTensor = tuple[str, torch.Tensor]


@dataclass(frozen=True)
class _Entry:
    """One weight: name in a checkpoint, parameter, full shape, and the PEFT layer that adapts it, if one does."""

    name: str
    parameter: torch.nn.Parameter
    shape: torch.Size
    layer: Any = None

    @property
    def n_bytes(self) -> int:
        return self.shape.numel() * self.parameter.element_size()

    def empty(self) -> torch.Tensor:
        """Shape and type without data."""
        return torch.empty(self.shape, dtype=self.parameter.dtype, device="meta")

    def parameters(self) -> list[torch.nn.Parameter]:
        """All that has to be gathered for it."""
        if self.layer is None:
            return [self.parameter]
        # By its own names: adapters of two weights of one module are nested.
        return [self.parameter, *(p for name, p in self.layer.named_parameters() if name.startswith("lora_"))]

    def tensor(self) -> torch.Tensor:
        """The weight as the policy uses it."""
        if self.layer is None or self.layer.merged:
            return self.parameter.data
        merged = self.parameter.data.float()
        for adapter in self.layer.active_adapters:
            merged = merged + self.layer.get_delta_weight(adapter).float()
        return merged.to(self.parameter.dtype)


class WeightSource:
    """Buckets of at most `bucket_bytes` (a larger weight is a bucket of its own) of a model's weights.

    `only_trainable` leaves frozen parts out, which the engines have already. With tensor parallelism the constructor
    is collective: full shapes are known after a gathering only. Raises ValueError for an adapter that is more than a
    sum with its base (DoRA), and where transformers would make one weight of a checkpoint from several buckets.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        zero_stage: int,
        bucket_bytes: int,
        tensor_parallel_size: int = 1,
        only_trainable: bool = False,
    ) -> None:
        self._model = model
        self._sharded = zero_stage == 3
        self._split = tensor_parallel_size > 1
        self.complete = not only_trainable
        base = model.get_base_model() if hasattr(model, "peft_config") else model
        self._checkpoint_names = base if isinstance(base, PreTrainedModel) else None
        entries = [
            _Entry(name, parameter, self._full_shape(parameter), layer)
            for name, parameter, layer in _weights(model, only_trainable)
        ]
        self._buckets = _packed(entries, bucket_bytes)
        whole = self._renamed([(e.name, e.empty()) for e in entries])
        if {(n, t.shape) for n, t in whole} != {(n, t.shape) for bucket in self.metadata() for n, t in bucket}:
            raise ValueError("a weight of the checkpoint comes from several buckets: raise --pace.sync_bucket_mib")

    def metadata(self) -> list[list[NamedTensor]]:
        """The buckets as tensors without data (device `meta`): names, shapes and types, nothing is gathered."""
        return [self._renamed([(entry.name, entry.empty()) for entry in bucket]) for bucket in self._buckets]

    def buckets(self, *, wanted: bool = True) -> Iterator[list[NamedTensor]]:
        """Each bucket's full tensors; empty lists on a rank that only takes part in the gathering (not `wanted`)."""
        for bucket in self._buckets:
            with self._gathered([parameter for entry in bucket for parameter in entry.parameters()]), torch.no_grad():
                yield self._renamed([(entry.name, entry.tensor()) for entry in bucket]) if wanted else []

    def _gathered(self, parameters: Sequence[torch.nn.Parameter]) -> Any:
        if not self._split:
            return deepspeed.zero.GatheredParameters(parameters, enabled=self._sharded)
        # One by one: given several, it gathers all of them the way that the first one's layer is split.
        gathered = ExitStack()
        for parameter in parameters:
            gathered.enter_context(
                deepspeed.module_inject.layers.GatherReplacedLayerParams([parameter], self._model, enabled=True)
            )
        return gathered

    def _full_shape(self, parameter: torch.nn.Parameter) -> torch.Size:
        if not self._split:
            return torch.Size(getattr(parameter, "ds_shape", parameter.shape))
        with self._gathered([parameter]):
            return parameter.shape

    def _renamed(self, tensors: list[NamedTensor]) -> list[NamedTensor]:
        """As in a checkpoint: transformers fuses experts at run time and knows how to take them apart again."""
        if self._checkpoint_names is None:
            return tensors
        return list(revert_weight_conversion(self._checkpoint_names, dict(tensors)).items())


def _weights(model: torch.nn.Module, only_trainable: bool) -> Iterator[tuple[str, torch.nn.Parameter, Any]]:
    """Name in a checkpoint, parameter and adapting layer of each weight."""
    layers = [layer for layer in model.modules() if isinstance(layer, LoraLayer)]
    adapted = {(layer.get_base_layer(), getattr(layer, "parameter_name", "weight")): layer for layer in layers}
    for name, parameter in model.named_parameters():
        if "lora_" in name or ".original_module." in name or (only_trainable and not parameter.requires_grad):
            continue
        owner, _, kind = name.rpartition(".")
        layer = adapted.get((model.get_submodule(owner), kind))
        if layer is not None and any(layer.use_dora.values()):
            raise ValueError(f"{owner} has a DoRA adapter, which a weight sync can't merge: use plain LoRA")
        yield _checkpoint_name(name), parameter, layer


def _checkpoint_name(name: str) -> str:
    """Without what PEFT puts around the model and its layers."""
    parts = name.removeprefix("base_model.model.").split(".")
    if "modules_to_save" in parts:
        at = parts.index("modules_to_save")
        del parts[at : at + 2]  # and the adapter's name
    return ".".join(part for part in parts if part != "base_layer")


def _packed(entries: list[_Entry], bucket_bytes: int) -> list[list[_Entry]]:
    buckets: list[list[_Entry]] = []
    room = 0
    for entry in entries:
        if not buckets or entry.n_bytes > room:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(entry)
        room -= entry.n_bytes
    return buckets
