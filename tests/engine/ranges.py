"""Weight sets that can be told apart by what they generate: under set v every token lies in a range of its own.

One feature of the residual stream is constant, nothing else writes to it, and the output layer reads the range of its
set from it alone. All other weights differ between sets as well, so that stale attention states change log-probs.
"""

from pathlib import Path

import models
import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

N_SETS = 21
WIDTH = 15  # tokens of a set
FIRST = 5  # the tokens before belong to no set
VOCABULARY = 384


def model(version: int) -> Qwen3ForCausalLM:
    """Weight set `version`, float32."""
    torch.manual_seed(100 + version)
    sizes = models.SIZES | {"vocab_size": VOCABULARY, "max_position_embeddings": 1024}
    config = Qwen3Config(**sizes, tie_word_embeddings=False)
    made = Qwen3ForCausalLM(config).eval()
    with torch.no_grad():
        made.model.embed_tokens.weight[:, 0] = 12.0
        for name, parameter in made.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter[0, :] = 0.0
        made.model.norm.weight[0] = 1.0
        made.lm_head.weight[:, 0] = -20.0
        made.lm_head.weight[FIRST + WIDTH * version : FIRST + WIDTH * (version + 1), 0] = 20.0
    return made


def version_of(token: int) -> int:
    """The weight set that generated a token."""
    return (token - FIRST) // WIDTH


def save(folder: Path) -> None:
    """Weight set 0 as a model folder."""
    model(0).save_pretrained(folder)


def logprobs(under: AutoModelForCausalLM, tokens: list[int]) -> list[float]:
    """Log-probs of all tokens but the first, as transformers computes them."""
    with torch.no_grad():
        rows = under(torch.tensor([tokens])).logits[0].float().log_softmax(-1)
    return [float(rows[i - 1, token]) for i, token in enumerate(tokens) if i]
