"""One vLLM engine in this process that plays episodes, without Ray and without a trainer.

Invariant: the same executors, sampling and tokens as in training: upstream's engine actor, as a plain object.

In: prompts and labels. Out: the executor's responses.
"""

import os
from typing import Any

from openrlhf.trainer.ray.rollout_actor import RolloutRayActor


class EpisodeEngine:
    """Starts with `await start(...)`; `close` ends the engine's process."""

    def __init__(self, actor: Any, *, tokenizer: Any, max_length: int, sampling: dict[str, Any]) -> None:
        self._actor, self._tokenizer = actor, tokenizer
        self._max_length, self._sampling = max_length, sampling

    @classmethod
    async def start(
        cls, model: str, *, agent_func_path: str, max_length: int, sampling: dict[str, Any], **engine: Any
    ) -> "EpisodeEngine":
        """`sampling` are vLLM's SamplingParams, `engine` its AsyncEngineArgs, `max_length` tokens of an episode."""
        from openrlhf.utils.utils import get_tokenizer

        os.environ.setdefault("RAY_ADDRESS", "none")  # upstream would ask Ray for it
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        settings = {
            "dtype": "bfloat16",
            "enable_prefix_caching": True,
            "worker_extension_cls": "openrlhf.trainer.ray.vllm_worker_wrap.WorkerWrap",
        }
        actor = RolloutRayActor.__new__(RolloutRayActor)
        await actor.__init__(  # Ray would await it, too
            agent_func_path=agent_func_path,
            num_gpus=1,
            model=model,
            max_model_len=max_length,
            trust_remote_code=True,
            **settings | engine,
        )
        return cls(actor, tokenizer=get_tokenizer(model, None), max_length=max_length, sampling=sampling)

    def text(self, tokens: list[int]) -> str:
        """What these tokens say, special tokens included."""
        return str(self._tokenizer.decode(tokens, skip_special_tokens=False))

    def render(self, messages: Any) -> str:
        """A prompt of messages in the model's chat template."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    async def play(self, prompt: str, label: str) -> dict[str, Any]:
        """One episode."""
        from vllm import SamplingParams

        params = SamplingParams(skip_special_tokens=False, include_stop_str_in_output=True, **self._sampling)
        (response,) = await self._actor.generate_responses(
            prompt=prompt,
            label=label,
            sampling_params=params,
            max_length=self._max_length,
            hf_tokenizer=self._tokenizer,
        )
        return response

    def close(self) -> None:
        """Ends the engine."""
        self._actor.llm.shutdown()
        del self._actor.llm  # else it is ended once more with the interpreter, when nothing is left to do so
