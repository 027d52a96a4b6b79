"""The tiny policy before training: a Qwen3 of one to three million parameters and a tokenizer of its own.

Invariant: tokenizer, model config and generation config name the same end-of-turn and padding tokens. Digits are
separate tokens and every byte has a token, so any text survives encoding and decoding.
"""

from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from examples.tiny.recipe import Recipe

PADDING, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CALL_MARKERS = ("<call>", "</call>")  # text, not special tokens: decoding keeps them
CHAT_TEMPLATE = """\
{%- if tools %}<|im_start|>system
Tools:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def build_tokenizer(recipe: Recipe, texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE trained on `texts`."""
    tokenizer = Tokenizer(models.BPE())
    # The usual split into words, single digits and punctuation, but a digit takes the space before it along.
    words = pre_tokenizers.Split(Regex(r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s"), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocabulary,
        special_tokens=[PADDING, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    roles = ["system\n", "user\n", "assistant\n", "tool\n"]  # what the chat template adds
    tokenizer.train_from_iterator([*texts, *roles * 1000], trainer)
    tokenizer.add_tokens([AddedToken(marker, normalized=False, special=False) for marker in CALL_MARKERS])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=PADDING,
        additional_special_tokens=[TURN_START],
        model_max_length=recipe.context,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def build_model(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """The untrained model. Embeddings are untied: vLLM keeps one copy of tied ones, which hides sync faults."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden,
        intermediate_size=recipe.intermediate,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        head_dim=recipe.head_dim,
        max_position_embeddings=recipe.context,
        tie_word_embeddings=False,
        initializer_range=recipe.initial_spread,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    torch.manual_seed(recipe.seed)
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=1.0, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    return model


def save_initial(recipe: Recipe, texts: Iterable[str], folder: Path) -> int:
    """Writes the untrained model with its tokenizer to `folder`; returns the number of parameters."""
    tokenizer = build_tokenizer(recipe, texts)
    model = build_model(recipe, tokenizer)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return model.num_parameters()
