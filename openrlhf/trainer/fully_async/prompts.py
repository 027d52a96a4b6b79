"""The prompt data set as tasks for the engines: upstream's own data set, a task for each of its rows."""

from typing import Any

from openrlhf.trainer.fully_async.messages import Task
from openrlhf.trainer.ppo_trainer import prepare_datasets


class PromptData:
    """`--data.prompt_dataset` and `--eval.dataset`, as upstream prepares them.

    `generate_kwargs` are upstream's (max_len, max_new_tokens, temperature, top_p).
    """

    def __init__(self, strategy: Any, tokenizer: Any, generate_kwargs: dict[str, Any]) -> None:
        loader, self.eval_loader, self.max_steps = prepare_datasets(strategy, tokenizer)
        self._rows = loader.dataset
        self._max_length = generate_kwargs["max_len"]
        self._n_samples = strategy.args.rollout.n_samples_per_prompt
        # What upstream's SamplesGenerator asks for, and a log-prob of every sampled token.
        self._sampling = {
            "temperature": generate_kwargs["temperature"],
            "top_p": generate_kwargs["top_p"],
            "max_tokens": generate_kwargs["max_new_tokens"],
            "min_tokens": 1,
            "skip_special_tokens": False,
            "logprobs": 0,
        }

    def tasks(self) -> list[Task]:
        """One per row; a lease's `index` names its row."""
        return [
            Task(
                prompt=prompt,
                label=label,
                images=images,
                sampling=self._sampling,
                max_length=self._max_length,
                n_samples=self._n_samples,
            )
            for _, prompt, label, images in map(self._rows.__getitem__, range(len(self._rows)))
        ]
