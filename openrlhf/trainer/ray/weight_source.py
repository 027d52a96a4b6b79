"""What a weight sync sends: the policy's weights in buckets, under the names of a checkpoint, which vLLM loads.

Invariants: every rank iterates the same buckets in the same order, because gathering ZeRO-3 shards is collective; the
trained weights are never changed; together the buckets hold every weight once, and nothing but weights (an adapter is
merged into its base for the message only).

In: the module that DeepSpeed trains. Out: lists of (name, full tensor), valid until the next bucket is asked for.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import deepspeed
import torch
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

NamedTensor = tuple[str, torch.Tensor]


@dataclass(frozen=True)
class _Entry:
    """One weight: its name in a checkpoint, the parameter, and the PEFT layer that adapts it, if one does."""

    name: str
    parameter: torch.nn.Parameter
    layer: Any = None

    @property
    def shape(self) -> torch.Size:
        return torch.Size(getattr(self.parameter, "ds_shape", self.parameter.shape))

    @property
    def n_bytes(self) -> int:
        return self.shape.numel() * self.parameter.element_size()

    def parameters(self) -> list[torch.nn.Parameter]:
        """All that has to be gathered for it."""
        if self.layer is None:
            return [self.parameter]
        return [self.parameter, *(p for name, p in self.layer.named_parameters() if "lora_" in name)]

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

    `only_trainable` leaves frozen parts out, which the engines have already. Raises ValueError for an adapter that is
    more than a sum with its base (DoRA).
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
        self._buckets = _packed(_entries(model, only_trainable), bucket_bytes)

    def metadata(self) -> list[list[NamedTensor]]:
        """The buckets as tensors without data (device `meta`): names, shapes and types, nothing is gathered."""
        return [
            self._renamed([(e.name, torch.empty(e.shape, dtype=e.parameter.dtype, device="meta")) for e in bucket])
            for bucket in self._buckets
        ]

    def buckets(self, *, wanted: bool = True) -> Iterator[list[NamedTensor]]:
        """Each bucket's full tensors; empty lists on a rank that only takes part in the gathering (not `wanted`)."""
        for bucket in self._buckets:
            with self._gathered([parameter for entry in bucket for parameter in entry.parameters()]), torch.no_grad():
                yield self._renamed([(entry.name, entry.tensor()) for entry in bucket]) if wanted else []

    def _gathered(self, parameters: list[torch.nn.Parameter]) -> Any:
        if self._split:
            return deepspeed.module_inject.layers.GatherReplacedLayerParams(parameters, self._model, enabled=True)
        return deepspeed.zero.GatheredParameters(parameters, enabled=self._sharded)

    def _renamed(self, tensors: list[NamedTensor]) -> list[NamedTensor]:
        """As in a checkpoint: transformers fuses experts at run time and knows how to take them apart again."""
        if self._checkpoint_names is None:
            return tensors
        return list(revert_weight_conversion(self._checkpoint_names, dict(tensors)).items())


def _entries(model: torch.nn.Module, only_trainable: bool) -> list[_Entry]:
    adapted = {f"{name}.base_layer": layer for name, layer in model.named_modules() if hasattr(layer, "base_layer")}
    entries = []
    for name, parameter in model.named_parameters():
        if "lora_" in name or ".original_module." in name or (only_trainable and not parameter.requires_grad):
            continue
        owner, _, kind = name.rpartition(".")
        layer = adapted.get(owner) if kind == "weight" else None
        if layer is not None and any(getattr(layer, "use_dora", {}).values()):
            raise ValueError(f"{owner} has a DoRA adapter, which a weight sync can't merge: use plain LoRA")
        entries.append(_Entry(_checkpoint_name(name), parameter, layer))
    return entries


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
