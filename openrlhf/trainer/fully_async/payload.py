"""The two forms in which a finished group travels: small records for the pool, and one block of bytes with the tokens.

Invariants: the block holds no pickled object, so that it may be read from a checkpoint of unknown origin; reading it
gives back upstream's response dictionaries, with `versions` (int per token) and a float log-prob per token besides.

In: responses of an executor and what the recorder saw. Out: `TrajectoryGroup`, bytes; and on the trainer's side the
responses again. Nothing here imports vLLM.
"""

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from openrlhf.trainer.fully_async.trajectory_recorder import NOT_GENERATED, UNKNOWN, TrajectoryRecorder
from pace.prompts import Lease
from pace.types import Trajectory, TrajectoryGroup, spans_of

Response = dict[str, Any]

# Fields of a response that are arrays of one number per token.
_ARRAYS = {"observation_tokens": np.int32, "rollout_log_probs": np.float32, "versions": np.int32}
_PIXELS = "mm_train_inputs"  # tensors by name, as the processor made them
_META = "meta"
SOLVED = 0.5  # a trajectory counts as solved from this score on


@dataclass(frozen=True, kw_only=True)
class Finished:
    """One finished rollout: the response, what was recorded of it, and the trainer's version when it was complete."""

    name: str
    response: Response
    recorder: TrajectoryRecorder
    completed_version: int

    @property
    def generated(self) -> list[int]:
        """Policy versions of the generated tokens in order, UNKNOWN included."""
        return [version for version in self.response["versions"] if version != NOT_GENERATED]

    @property
    def versions(self) -> set[int]:
        """Which versions generated it."""
        return set(self.generated)


def finish(response: Response, recorder: TrajectoryRecorder, *, completed_version: int, name: str) -> Finished:
    """Adds versions and behaviour log-probs to a response.

    Raises ValueError when it holds no generated token or too few log-probs, TypeError when it cannot be packed.
    """
    tokens = response["observation_tokens"]
    aligned = recorder.align(tokens, response["action_ranges"])
    logprobs = response.get("rollout_log_probs")
    if logprobs is not None and len(logprobs) != len(tokens):
        raise ValueError(f"trajectory {name} has {len(logprobs)} rollout_log_probs for {len(tokens)} tokens")
    response = {field: _carried(value, field) for field, value in response.items()} | {
        "versions": aligned.versions,
        "rollout_log_probs": aligned.logprobs if logprobs is None else list(logprobs),
    }
    done = Finished(name=name, response=response, recorder=recorder, completed_version=completed_version)
    if not done.generated:
        raise ValueError(f"trajectory {name} has no generated token: its prompt leaves no room (--data.max_len)")
    return done


def group_records(
    finished: Sequence[Finished], *, lease: Lease, ready_version: int
) -> tuple[TrajectoryGroup, list[Response]]:
    """The pool's record of a group that became ready at the trainer's version `ready_version`, and its responses."""
    trajectories = tuple(_trajectory(done, lease) for done in finished)
    group = TrajectoryGroup(
        group_id=lease.group_id,
        prompt_id=lease.prompt_id,
        trajectories=trajectories,
        ready_version=ready_version,
        attempt=lease.attempt,
    )
    return group, [done.response for done in finished]


def scores(responses: Sequence[Response]) -> tuple[float | None, ...]:
    """What dynamic filtering compares: the score of each response, its reward where it has none."""
    return tuple(_score(response) for response in responses)


def _score(response: Response) -> float | None:
    score = _number(response.get("scores"))
    return _number(response.get("reward")) if score is None else score


def _number(value: Any) -> float | None:
    """A scalar, one-element tensor or list as a float."""
    if hasattr(value, "flatten"):
        value = value.flatten().tolist()
    if isinstance(value, list | tuple):
        value = value[0] if value else None
    return None if value is None else float(value)


def _trajectory(done: Finished, lease: Lease) -> Trajectory:
    score = _score(done.response)
    versions = done.response["versions"]
    first = next(i for i, version in enumerate(versions) if version != NOT_GENERATED)
    return Trajectory(
        trajectory_id=done.name,
        group_id=lease.group_id,
        prompt_id=lease.prompt_id,
        spans=spans_of(None if version == UNKNOWN else version for version in done.generated),
        completed_version=done.completed_version,
        reward=_number(done.response.get("reward")),
        solved=None if score is None else score >= SOLVED,
        length=len(versions) - first,
        prefix_score=done.recorder.score,
        n_shared_tokens=done.recorder.n_given,
    )


def pack(responses: Sequence[Response]) -> bytes:
    """Responses as one block. Raises TypeError for a field that is neither an array, a tensor nor plain data."""
    arrays: dict[str, np.ndarray] = {}
    metas = []
    for i, response in enumerate(responses):
        meta = {}
        for name, value in response.items():
            value = _carried(value, name)
            if name in _ARRAYS and value is not None:
                arrays[f"{i}.{name}"] = np.asarray(value, dtype=_ARRAYS[name])
            elif name == _PIXELS and value:
                arrays |= {f"{i}.mm.{key}": _array(tensor) for key, tensor in value.items()}
            else:
                meta[name] = value
        metas.append(meta)
    arrays[_META] = np.frombuffer(json.dumps(metas).encode(), dtype=np.uint8)
    block = io.BytesIO()
    np.savez(block, **arrays)  # type: ignore[arg-type]
    return block.getvalue()


def unpack(block: bytes) -> list[Response]:
    """Inverse of `pack`; scalars come back as Python numbers. Raises ValueError for anything else."""
    try:
        with np.load(io.BytesIO(block), allow_pickle=False) as arrays:
            return _responses(arrays)
    except (AttributeError, EOFError, LookupError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{len(block)} bytes are no packed responses: {error}") from error


def _responses(arrays: Mapping[str, np.ndarray]) -> list[Response]:
    responses: list[Response] = json.loads(arrays[_META].tobytes())
    for key, array in arrays.items():
        if key == _META:
            continue
        i, name = key.split(".", 1)
        if name.startswith("mm."):
            inputs = responses[int(i)].setdefault(_PIXELS, {})
            inputs[name.removeprefix("mm.")] = torch.from_numpy(array.copy())
        else:
            responses[int(i)][name] = array.tolist()
    return responses


def _carried(value: Any, name: str) -> Any:
    """A field of a response as it can travel. Raises TypeError, naming the field, if it cannot."""
    if name in _ARRAYS:
        return value
    if name == _PIXELS and isinstance(value, Mapping):
        for key, tensor in value.items():
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(f"a response's {name}.{key} is a {type(tensor).__name__}, not a tensor")
        return value
    if name == "images":  # nobody trains on these; loaded ones (from the data set) would be large
        references = value if isinstance(value, list | tuple) else [value]
        return [item for item in references if isinstance(item, str)] or None
    return _plain(value, name)


def _plain(value: Any, name: str) -> Any:
    """JSON's own types; a tensor or array as its numbers, in one list, or its only number."""
    if isinstance(value, torch.Tensor | np.generic | np.ndarray):
        numbers = value.flatten().tolist()
        return numbers[0] if len(numbers) == 1 else numbers
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, name) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise TypeError(f"a response's {name} is a {type(value).__name__}: use plain data (numbers, text, lists) there")


def _array(tensor: torch.Tensor) -> np.ndarray:
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).detach().cpu().numpy()
