"""How often a model solves the tiny tasks when it samples at temperature 1, by the tasks' own reward code.

Invariant: the same model folder, rows and seed give the same rate on the same machine. Runs in batches on the CPU with
transformers' `generate`, so a few hundred problems take seconds.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples.python.agent_func_calculator import AgentInstance
from examples.python.reward_func_math import reward_func

Row = dict[str, Any]
Generate = Callable[[list[str], int], list[str]]  # prompts, most new tokens -> texts with their end-of-turn token
SUM_TOKENS, CALL_TOKENS = 64, 16


@contextmanager
def one_thread() -> Iterator[None]:
    """More threads mostly wait for each other in operations as small as these: ten times slower on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Sampler:
    """A model folder as a `Generate` function."""

    def __init__(self, folder: Path, seed: int = 0, temperature: float = 1.0) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.temperature = temperature
        torch.manual_seed(seed)

    def prompt(self, row: Row) -> str:
        return self.tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True)

    @torch.no_grad()
    def __call__(self, prompts: list[str], max_new_tokens: int) -> list[str]:
        batch = self.tokenizer(
            prompts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False
        )
        with one_thread():
            tokens = self.model.generate(
                input_ids=batch["input_ids"],
                attention_mask=batch["attention_mask"],
                max_new_tokens=max_new_tokens,
                do_sample=True,
                temperature=self.temperature,
                top_k=0,
                top_p=1.0,
            )
        texts = self.tokenizer.batch_decode(tokens[:, batch["input_ids"].shape[1] :])
        end = self.tokenizer.eos_token
        return [text[: text.index(end) + len(end)] if end in text else text for text in texts]


def solve_rate(generate: Generate, prompts: list[str], labels: list[str]) -> float:
    """The mean reward of one answer to each prompt."""
    queries = [prompt + answer for prompt, answer in zip(prompts, generate(prompts, SUM_TOKENS), strict=True)]
    return reward_func(queries, prompts, labels)["rewards"].mean().item()


def game_rate(generate: Generate, prompts: list[str], labels: list[str]) -> float:
    """The share of won episodes of the calculator game. All episodes advance together, turn by turn."""
    return asyncio.run(_play_all(generate, prompts, labels))


async def _play_all(generate: Generate, prompts: list[str], labels: list[str]) -> float:
    episodes = [AgentInstance() for _ in prompts]
    texts = []
    for episode, prompt, label in zip(episodes, prompts, labels, strict=True):
        texts.append((await episode.reset({"observation": prompt, "label": label}))["observation"])
    live, wins = list(range(len(prompts))), 0.0
    while live:
        actions = generate([texts[index] for index in live], CALL_TOKENS)
        still = []
        for index, action in zip(live, actions, strict=True):
            result = await episodes[index].step(
                {"observation_text": texts[index], "action_text": action, "label": labels[index]}
            )
            texts[index] += action + result["environment_feedback"]
            wins += result["rewards"].item()
            if not result["done"]:
                still.append(index)
        live = still
    return wins / len(prompts)
