"""Small models of the kinds whose weights travel differently, in pairs of the same shape and different weights."""

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

KINDS = ("tied", "untied", "lora", "moe")
SIZES: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "initializer_range": 0.2,
}


def plain(kind: str, seed: int) -> PreTrainedModel:
    """The model without an adapter, float32."""
    torch.manual_seed(seed)
    if kind == "moe":
        experts = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "decoder_sparse_step": 1}
        return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **experts)).eval()
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, tie_word_embeddings=kind == "tied")).eval()


def trained(kind: str, seed: int) -> torch.nn.Module:
    """What a trainer holds: for `lora` with adapters that do something and a wholly trained output layer."""
    model = plain(kind, seed)
    if kind != "lora":
        return model
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, lora_alpha=16, target_modules=["q_proj", "down_proj"], modules_to_save=["lm_head"])
    adapted = get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                parameter.normal_(0, 0.2)
    return adapted.eval()


def save(kind: str, seed: int, folder: Path) -> None:
    """A model folder, as an engine starts from it."""
    plain(kind, seed).save_pretrained(folder)
