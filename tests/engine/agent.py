"""A multi-turn agent over token texts: three turns with a pause between, as a tool would take."""

import asyncio

import torch

from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor


class Agent(AgentInstanceBase):
    def __init__(self) -> None:
        self.turn = 0

    async def step(self, state_dict: dict, **kwargs: object) -> dict:
        self.turn += 1
        if state_dict["label"] == "never ends":
            await asyncio.Event().wait()
        await asyncio.sleep(0.02 * (hash(state_dict["label"]) % 7))
        params = state_dict["sampling_params"]
        return {
            "rewards": torch.tensor(1.0),
            "environment_feedback": "3 4",
            "done": self.turn == 3,
            "sampling_params": params,
        }


class AgentExecutor(MultiTurnAgentExecutor):
    def __init__(self) -> None:
        super().__init__(Agent)

    async def execute(self, prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine, images=None):
        # Upstream lets a turn use all that is left; three turns shall share it here.
        return await super().execute(prompt, label, sampling_params, max_length, hf_tokenizer, ThirdOf(llm_engine))


class ThirdOf:
    """The engine, with turns of at most 40 tokens."""

    def __init__(self, engine) -> None:
        self._engine = engine

    async def generate(self, prompt_token_ids, sampling_params, multi_modal_data=None):
        sampling_params.max_tokens = min(sampling_params.max_tokens, 40)
        return await self._engine.generate(prompt_token_ids, sampling_params, multi_modal_data=multi_modal_data)
