"""Upstream's engine actor, which says what went wrong: why a response has no usable reward, and that its engine died.

A plain class in a module of its own, so that Ray's workers import it by name; `vllm_engine` makes the actor of it.
"""

from typing import Any

from openrlhf._upstream.trainer.ray import vllm_engine as upstream
from openrlhf.trainer.ray.actor_class import raw_class
from openrlhf.trainer.ray.reward_check import CheckedRewardFunc, check_response


class RolloutRayActor(raw_class(upstream.RolloutRayActor)):  # type: ignore[misc]
    """One vLLM engine; upstream's name, arguments and methods."""

    async def __init__(
        self, *args: Any, agent_func_path: str | None = None, remote_rm_url: Any = None, **kwargs: Any
    ) -> None:
        await super().__init__(*args, agent_func_path=agent_func_path, remote_rm_url=remote_rm_url, **kwargs)
        self._reward_source = None
        self._reward_func = None
        if agent_func_path:
            self._reward_source = f"--train.agent_func_path {agent_func_path}"
        elif remote_rm_url:
            path = remote_rm_url if isinstance(remote_rm_url, str) else remote_rm_url[0]
            self._reward_source = f"--reward.remote_url {path}"
            if self.executor.reward_func is not None:
                self._reward_func = self.executor.reward_func = CheckedRewardFunc(self.executor.reward_func, path)

    async def generate_responses(self, *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
        """As upstream's; raises RewardError when a response that should carry a reward has no finite one."""
        responses = await super().generate_responses(*args, **kwargs)
        if self._reward_source is not None:
            for response in responses:
                check_response(response, self._reward_source, self._reward_func)
        return responses

    async def check_engine(self) -> None:
        """Returns when the engine's processes are alive; raises vLLM's EngineDeadError otherwise."""
        await self.llm.check_health()
