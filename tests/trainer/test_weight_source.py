"""What a weight sync sends: every weight once, named as in a checkpoint, as the policy uses it, in bounded buckets."""

import copy
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from peft import LoraConfig, get_peft_model
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.core_model_loading import Chunk, WeightConverter

from openrlhf.trainer.ray.weight_source import WeightSource

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
}
EXPERTS = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2, "decoder_sparse_step": 1}
ATTENTION = ["q_proj", "o_proj"]
KINDS: dict[str, tuple[str, LoraConfig | None]] = {
    "tied": ("tied", None),
    "untied": ("untied", None),
    "experts": ("experts", None),
    "lora": ("untied", LoraConfig(r=4, lora_alpha=16, target_modules=[*ATTENTION, "down_proj"])),
    "rslora": ("untied", LoraConfig(r=4, lora_alpha=16, use_rslora=True, target_modules=ATTENTION)),
    "embedding": ("untied", LoraConfig(r=4, target_modules=["embed_tokens", "q_proj"])),
    "saved modules": ("untied", LoraConfig(r=4, target_modules=ATTENTION, modules_to_save=["lm_head"])),
    # PEFT turns these into adapters of the fused parameters, nested around one module.
    "adapted experts": ("experts", LoraConfig(r=4, target_modules=["q_proj", "gate_proj", "up_proj", "down_proj"])),
}


def plain(kind: str) -> PreTrainedModel:
    torch.manual_seed(0)
    if kind == "experts":
        return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **EXPERTS))
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, tie_word_embeddings=kind == "tied"))


def model_of(kind: str) -> Any:
    """What a trainer holds; its adapters do something."""
    base, adapter = KINDS[kind]
    if adapter is None:
        return plain(base)
    model = get_peft_model(plain(base), copy.deepcopy(adapter))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                parameter.normal_(0, 0.2)
    return model


def source_of(model: Any, bucket_bytes: int = 1 << 12, **options: Any) -> WeightSource:
    return WeightSource(model, zero_stage=0, bucket_bytes=bucket_bytes, **options)


def sent(source: WeightSource) -> dict[str, torch.Tensor]:
    pairs = [(name, tensor.clone()) for bucket in source.buckets() for name, tensor in bucket]
    assert len(dict(pairs)) == len(pairs), "a weight is sent twice"
    return dict(pairs)


def n_bytes(bucket: list[tuple[str, torch.Tensor]]) -> int:
    return sum(tensor.numel() * tensor.element_size() for _, tensor in bucket)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_it_sends_what_a_checkpoint_of_the_merged_model_holds(kind: str, tmp_path: Path) -> None:
    model = model_of(kind)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    have = sent(source_of(model))
    assert all(torch.equal(before[name], parameter) for name, parameter in model.named_parameters())
    merged = model.merge_and_unload() if hasattr(model, "peft_config") else model
    merged.save_pretrained(tmp_path)
    wanted = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert have.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(have[name], tensor, rtol=0, atol=1e-6)


def test_the_experts_of_a_checkpoint_are_single_ones() -> None:
    """transformers fuses them at run time; vLLM loads them one by one."""
    names = sent(source_of(plain("experts"))).keys()
    assert "model.layers.1.mlp.experts.3.down_proj.weight" in names
    assert not any(name.endswith(("gate_up_proj", "experts.down_proj")) for name in names)


def test_a_dora_adapter_is_refused() -> None:
    model = get_peft_model(plain("untied"), LoraConfig(r=4, use_dora=True, target_modules=ATTENTION))
    with pytest.raises(ValueError, match="DoRA"):
        source_of(model)


@pytest.mark.parametrize("kind", ["tied", "experts", "saved modules"])
@pytest.mark.parametrize("bucket_bytes", [1, 3000, 1 << 13, 1 << 30])
def test_buckets_are_bounded_and_announced(kind: str, bucket_bytes: int) -> None:
    model = model_of(kind)
    source = source_of(model, bucket_bytes)
    announced = [[(name, t.dtype, t.shape) for name, t in bucket] for bucket in source.metadata()]
    buckets = [list(bucket) for bucket in source.buckets()]
    assert [[(name, t.dtype, t.shape) for name, t in bucket] for bucket in buckets] == announced
    largest = max(p.numel() * p.element_size() for p in model.parameters())  # which is a bucket of its own
    assert all(n_bytes(bucket) <= max(bucket_bytes, largest) for bucket in buckets)
    n_entries = sum("lora_" not in n and "original_module" not in n for n, _ in model.named_parameters())
    assert len(buckets) == {1: n_entries, 1 << 30: 1}.get(bucket_bytes, len(buckets))
    rooms = [n_bytes(a) + n_bytes(b) for a, b in zip(buckets, buckets[1:], strict=False)]
    assert all(together > bucket_bytes for together in rooms), "two neighbours would have fitted into one"


def test_a_rank_that_does_not_send_gets_nothing() -> None:
    source = source_of(plain("tied"))
    assert list(source.buckets(wanted=False)) == [[]] * len(source.metadata())


def test_frozen_parts_can_be_left_out() -> None:
    """The vision tower of a model whose language part is trained."""
    model = plain("untied")
    model.model.layers[0].requires_grad_(False)
    whole, part = source_of(model), source_of(model, only_trainable=True)
    assert (whole.complete, part.complete) == (True, False)
    left_out = sent(whole).keys() - sent(part).keys()
    assert left_out == {name for name, p in model.named_parameters() if not p.requires_grad}


def test_weights_that_one_checkpoint_tensor_is_made_of_must_share_a_bucket() -> None:
    model = plain("untied")
    parts = [f"self_attn.{part}_proj.weight" for part in "qkv"]
    fused = WeightConverter("self_attn.qkv.weight", parts, operations=[Chunk(dim=0)])
    model._weight_conversions = [fused]
    attention = model.model.layers[0].self_attn
    together = torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
    assert torch.equal(sent(source_of(model, 1 << 30))["model.layers.0.self_attn.qkv.weight"], together)
    with pytest.raises(ValueError, match="sync_bucket_mib"):
        source_of(model, 1)
