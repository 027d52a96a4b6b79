"""The engine actor of the pool pipeline: whole trajectory groups, in which every token carries its policy version.

Invariants:
- Weights and label change only while generation is paused, so vLLM's own labels are exact, also within a response.
- The actor serves a policy version only after the trainer said so (`serve`); a restarted one serves nothing before.
- A dead or silent engine ends the actor's process, and Ray starts it anew: nobody waits for it.

In: leases with their prompts from the rollout manager; weights from the trainer. Out: `GroupReport` (small records for
the pool) beside the packed responses.
"""

import asyncio
import logging
import os
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import deepcopy
from typing import Any, TypeVar

import ray
from vllm import SamplingParams
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest
from vllm.inputs import TokensPrompt
from vllm.sampling_params import RequestOutputKind

from openrlhf.trainer.fully_async import payload
from openrlhf.trainer.fully_async.engine_control import EngineTimeout, control, end_when_blocked
from openrlhf.trainer.fully_async.messages import EngineStatus, GroupReport, LoadReport, Task
from openrlhf.trainer.fully_async.prefix_scorer import PrefixScorer
from openrlhf.trainer.fully_async.trajectory_recorder import Generation, TrajectoryRecorder
from openrlhf.trainer.ray import rollout_actor
from openrlhf.trainer.ray.reward_check import check_response
from openrlhf.trainer.ray.weight_transfer import transfer_backend
from openrlhf.trainer.tree.branching import CannotBranch
from pace.config import PaceConfig
from pace.prompts import Lease

logger = logging.getLogger(__name__)
T = TypeVar("T")
Begin = Callable[[str], tuple[Any, TrajectoryRecorder]]

PROBE_PERIOD = 2.0  # seconds between two looks at the engine
# For the user's reward functions. One that hangs keeps its thread for ever, and must not keep the others waiting.
REWARD_THREADS = 1024


class RolloutRayActor(rollout_actor.RolloutRayActor):
    """One vLLM engine; upstream's name, arguments and methods, and the ones that PACE needs."""

    async def __init__(self, *args: Any, pace: PaceConfig, **kwargs: Any) -> None:
        self._pace = pace
        self._incarnation = uuid.uuid4().hex[:8]
        self._recorders: dict[str, TrajectoryRecorder] = {}
        self._version: int | None = None  # the trainer's, as far as this engine was told
        self._loaded: int | None = None  # of the weights in the engine
        self._serving = asyncio.Event()
        self._update = asyncio.Lock()
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(REWARD_THREADS, "reward"))
        settings = {
            "weight_transfer_config": WeightTransferConfig(backend=transfer_backend()),
            "logprobs_mode": "processed_logprobs",
            "max_logprobs": 1,
        }
        try:
            await super().__init__(*args, **kwargs | settings)
        except Exception:
            # Ray gives an actor up whose constructor raises. The first start shall end the run with its cause; a later
            # one may have met what ended the engine before, and is tried again.
            if ray.is_initialized() and ray.get_runtime_context().was_current_actor_reconstructed:
                logger.exception("the engine did not start; once more")
                os._exit(1)
            raise
        self._scorer = PrefixScorer(self.rescore, pace, max_sequence=kwargs["max_model_len"] - 1)
        self._background = {asyncio.create_task(self._end_when_dead())}
        limit = max(self._pace.trajectory_timeout_s, self._pace.engine_timeout_s)
        end_when_blocked(asyncio.get_running_loop(), limit, end=lambda: os._exit(1))

    # Rollouts

    async def generate_group(self, lease: Lease, task: Task, hf_tokenizer: Any) -> tuple[GroupReport, bytes]:
        """All rollouts of a prompt; two return values, so that the responses can stay where they are.

        A trajectory whose environment or reward fails is generated again, up to `--pace.max_retries` times; then the
        group has failed. Raises vLLM's EngineDeadError when the engine is gone.
        """
        await self._serving.wait()
        spent: list[TrajectoryRecorder] = []
        names = [f"{lease.group_id}/{i}" for i in range(task.n_samples)]
        try:
            finished = await all_or_none([self._trajectory(name, task, hf_tokenizer, spent) for name in names])
            return self._group(finished, lease, spent)
        except Exception as error:
            if self.llm.errored:
                raise
            return failed(error, spent), b""

    def _group(
        self, finished: list[payload.Finished], lease: Lease, spent: list[TrajectoryRecorder]
    ) -> tuple[GroupReport, bytes]:
        """The report about a finished group, and its packed responses."""
        records, responses = payload.group_records(finished, lease=lease, ready_version=self._version or 0)
        packed = payload.pack(responses)
        self._calibrate(finished)
        n_tokens = sum(recorder.n_tokens for recorder in spent)
        return GroupReport(group=records, n_tokens=n_tokens, scores=payload.scores(responses)), packed

    async def _trajectory(
        self, name: str, task: Task, hf_tokenizer: Any, spent: list[TrajectoryRecorder], begin: Begin | None = None
    ) -> payload.Finished:
        """One rollout, retried. `begin` makes executor and recorder of an attempt that starts otherwise than
        at the prompt. Raises the last failure."""
        for attempt in range(self._pace.max_retries + 1):
            if begin is None:
                executor = self.executor
                recorder = TrajectoryRecorder(self, name=f"{name}.{attempt}", start_version=self._version or 0)
            else:
                executor, recorder = begin(f"{name}.{attempt}")
            spent.append(recorder)
            self._recorders[recorder.name] = recorder
            try:
                response = await asyncio.wait_for(
                    executor.execute(
                        prompt=task.prompt,
                        label=task.label,
                        sampling_params=SamplingParams(**task.sampling),
                        max_length=task.max_length,
                        hf_tokenizer=hf_tokenizer,
                        llm_engine=recorder,
                        images=task.images,
                    ),
                    self._pace.trajectory_timeout_s,
                )
                if self._reward_source is not None:
                    check_response(response, self._reward_source, self._reward_func)
                return payload.finish(response, recorder, completed_version=self._version or 0, name=name)
            except Exception as error:
                if isinstance(error, TimeoutError):
                    limit = f"{self._pace.trajectory_timeout_s:g} s (--pace.trajectory_timeout_s)"
                    error = TimeoutError(f"trajectory {name} took longer than {limit}")
                if self.llm.errored or attempt == self._pace.max_retries or isinstance(error, CannotBranch):
                    raise error
                logger.warning("trajectory %s failed and is generated again: %s", name, error)
            finally:
                del self._recorders[recorder.name]
        raise AssertionError("unreachable")

    async def generate_outputs(self, generation: Generation, sampling_params: Any, multi_modal_data: Any) -> Any:
        """vLLM's final output for a recorded generation (called by the recorder)."""
        tokens = generation.prompt
        if multi_modal_data and self._mm_pad_token_ids:
            from openrlhf.utils.vlm_utils import dedup_media_tokens

            tokens = dedup_media_tokens(tokens, self._mm_pad_token_ids)
        prompt = TokensPrompt(prompt_token_ids=tokens)
        if multi_modal_data:
            prompt["multi_modal_data"] = multi_modal_data
        if self._pace.kv == "keep":
            prompt["cache_salt"] = f"v{self._loaded}"  # never read blocks that other weights wrote
        params = deepcopy(sampling_params)
        params.output_kind = RequestOutputKind.FINAL_ONLY
        params.logprobs = params.logprobs or 0
        return await _final(self.llm.generate(prompt, params, request_id=generation.request_id))

    def generated_so_far(self, request_id: str) -> tuple[list[int], list[float]]:
        """Tokens and log-probs of a running request, from vLLM's own book-keeping (called by the recorder)."""
        processor = self.llm.output_processor
        state = next((processor.request_states[i] for i in processor.external_req_ids.get(request_id, ())), None)
        if state is None or state.detokenizer is None:
            return [], []
        tokens = list(state.detokenizer.output_token_ids)
        rows = state.logprobs_processor.logprobs or []
        logprobs = [float(row[token].logprob) for row, token in zip(rows, tokens, strict=False)]
        return tokens[: len(logprobs)], logprobs

    # Weights

    async def connect_weights(self, init_info: dict[str, Any]) -> None:
        """Prepares vLLM's weight transfer; again after the trainer's side has changed."""
        request = WeightTransferInitRequest(init_info=init_info)
        await self._control(self.llm.init_weight_transfer_engine(request), "init_weight_transfer_engine")

    async def load_weights(self, version: int, update_infos: list[dict[str, Any]]) -> LoadReport:
        """Pauses generation and loads the weights of `version`; `serve` lets it go on.

        After an error the engine stays paused, since its weights may be mixed: load again, or give the engine up.
        """
        async with self._update:
            began = time.monotonic()
            recompute = self._pace.kv == "recompute"
            await self._control(self.llm.pause_generation(mode="keep", clear_cache=recompute), "pause_generation")
            paused = time.monotonic()
            self._loaded = None
            interrupted = self._scorer.interrupt(list(self._recorders.values())) if self._version is not None else 0
            await self._control(self.llm.start_weight_update(), "start_weight_update")
            try:
                for info in update_infos:
                    request = WeightTransferUpdateRequest(update_info=info)
                    await self._control(self.llm.update_weights(request), "update_weights")
                await self._control(self.llm.finish_weight_update(weight_version=str(version)), "finish_weight_update")
            except Exception:
                with suppress(Exception):  # a dead engine has nothing left to end
                    await self._control(self.llm.collective_rpc("abandon_weight_update"), "abandon_weight_update")
                raise
            self._loaded = version
            now = time.monotonic()
            return LoadReport(
                pause_s=paused - began,
                load_s=now - paused,
                interrupted=interrupted,
                noise_floor=self._scorer.floor,
                rescore_s=self._scorer.seconds,
            )

    async def serve(self, version: int, *, weights: str = "loaded") -> str:
        """The trainer is at `version` now; generation goes on. `weights="own"`: those the engine started with are it.

        Returns which start of the engine this is. Raises RuntimeError if other weights are loaded.
        """
        if weights == "own" and self._loaded is None:
            await self._control(self.llm.update_weight_version(str(version)), "update_weight_version")
            self._loaded = version
        if self._loaded != version:
            raise RuntimeError(f"the engine holds the weights of version {self._loaded}, not {version}")
        self._version = version
        await self._control(self.llm.resume_generation(), "resume_generation")
        self._serving.set()
        return self._incarnation

    async def score_prefixes(self) -> list[float]:
        """Prefix scores of the trajectories that the last weight sync interrupted, in nats per token."""
        version = self._loaded
        return [] if version is None else await self._scorer.score(version)

    async def rescore(self, tokens: list[int]) -> tuple[list[float], int]:
        """Log-probs of all tokens but the first under the current weights, and the version of these weights."""
        params = SamplingParams(
            max_tokens=1, prompt_logprobs=0, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
        )
        request_id = f"rescore-{uuid.uuid4().hex}"
        answer = await _final(self.llm.generate(TokensPrompt(prompt_token_ids=tokens), params, request_id=request_id))
        rows = zip(answer.prompt_logprobs[1:], tokens[1:], strict=True)
        return [float(row[token].logprob) for row, token in rows], int(answer.outputs[0].weight_versions[0].version)

    # Health

    async def status(self) -> EngineStatus:
        """Which engine this is and what it serves. Raises vLLM's EngineDeadError."""
        await self.check_engine()
        return EngineStatus(incarnation=self._incarnation, version=self._version, loaded=self._loaded)

    async def _control(self, call: Any, what: str) -> Any:
        return await control(self.llm, call, what=what, timeout_s=self._pace.sync_timeout_s)

    async def _end_when_dead(self) -> None:
        """Ends this process when the engine is dead or answers no control call for `--pace.engine_timeout_s`."""
        while not self.llm.errored:
            await asyncio.sleep(PROBE_PERIOD)
            if self._update.locked():
                continue  # loading weights takes what it takes; it has its own time limit
            try:
                limit = self._pace.engine_timeout_s
                await control(self.llm, self.llm.get_weight_version(), what="a probe", timeout_s=limit)
            except EngineTimeout as error:
                logger.error("%s (--pace.engine_timeout_s)", error)
                break
            except Exception:
                break
        logger.error("the engine is gone; its actor ends and is started again")
        await asyncio.sleep(0.5)  # callers get their errors first
        os._exit(1)

    def _calibrate(self, finished: list[payload.Finished]) -> None:
        """Measures the engine's noise on trajectories of the current weights, beside the generation."""
        for done in finished:
            if not self._scorer.calibrated and self._loaded is not None and done.versions == {self._loaded}:
                task = asyncio.create_task(self._scorer.calibrate(done.recorder, self._loaded))
                self._background.add(task)
                task.add_done_callback(self._background.discard)


def failed(error: Exception, spent: list[TrajectoryRecorder]) -> GroupReport:
    """The report about a group that failed."""
    n_tokens = sum(recorder.n_tokens for recorder in spent)
    return GroupReport(group=None, n_tokens=n_tokens, failure=f"{type(error).__name__}: {error}")


async def all_or_none(calls: list[Coroutine[Any, Any, T]]) -> list[T]:
    """Every result, or the first error after all others were cancelled and have ended."""
    tasks = [asyncio.create_task(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for unfinished in tasks:
            unfinished.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def _final(outputs: AsyncIterator[Any]) -> Any:
    """The last output of a request."""
    last = None
    async for output in outputs:
        last = output
    return last
