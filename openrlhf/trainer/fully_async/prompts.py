"""The prompt data set as tasks for the engines: upstream's `PromptDataset`, row by row, in the order of the leases."""

from typing import Any

from openrlhf.trainer.fully_async.messages import Task
from openrlhf.utils.utils import get_tokenizer
from pace.prompts import Lease


class PromptData:
    """Rows of `--data.prompt_dataset`. `generate_kwargs` are upstream's, by its own names."""

    def __init__(self, pretrain: str, strategy: Any, generate_kwargs: dict[str, Any]) -> None:
        from openrlhf.trainer.ppo_trainer import prepare_datasets

        args = strategy.args
        self.tokenizer = get_tokenizer(pretrain, None, "left", strategy, use_fast=not args.data.disable_fast_tokenizer)
        loader, self.eval_loader, self.max_steps = prepare_datasets(strategy, self.tokenizer)
        self._rows = loader.dataset
        self._max_length = generate_kwargs["max_len"]
        self._n_samples = args.rollout.n_samples_per_prompt
        # What upstream's SamplesGenerator asks for, and a log-prob of every sampled token.
        self._sampling = {
            "temperature": generate_kwargs["temperature"],
            "top_p": generate_kwargs["top_p"],
            "max_tokens": generate_kwargs["max_new_tokens"],
            "min_tokens": 1,
            "skip_special_tokens": False,
            "logprobs": 0,
        }

    def __len__(self) -> int:
        return len(self._rows)

    def task(self, lease: Lease) -> Task:
        """What to roll out for a lease."""
        _, prompt, label, images = self._rows[lease.index]
        return Task(
            prompt=prompt,
            label=label,
            images=images,
            sampling=self._sampling,
            max_length=self._max_length,
            n_samples=self._n_samples,
        )
