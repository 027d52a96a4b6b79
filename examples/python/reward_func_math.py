"""Reward for problems with a checkable answer, for `--reward.remote_url examples/python/reward_func_math.py`.

1 where the response's answer is mathematically equal to the label (`0.5`, `1/2` and `\\frac{1}{2}` are one answer),
else 0. Only the response counts, never the prompt, which may hold an answer of its own.

Invariant: `reward_func` returns one number for every query and never raises, whatever the text. Two plain integers are
compared here; everything else goes to math-verify in a child process. Upstream calls this function in a thread,
where math-verify's own time limits can't work (they need signals, so the main thread), and without a limit one
hostile answer such as `9^{9^{9^{9}}}` would stop a run for ever. A child that exceeds the limit is killed and the
answer counts as wrong.
"""

import atexit
import contextlib
import json
import logging
import re
import select
import subprocess
import sys
import threading
from typing import Any

import torch

logger = logging.getLogger(__name__)

# What opens the model's part in the chat formats of the common model families; the first is ChatML.
ASSISTANT_MARKERS = ("<|im_start|>assistant\n", "<|start_header_id|>assistant<|end_header_id|>\n\n", "\nAssistant: ")
MAX_ANSWER_CHARS = 2000  # answers stand at the end; math-verify's patterns get slow on long texts
TIME_LIMIT_S = 5.0
START_LIMIT_S = 60.0  # the child imports sympy first
MEMORY_LIMIT_BYTES = 4 << 30
_SPECIAL = re.compile(r"<\|[^|>]*\|>")
_BOXED_INTEGER = re.compile(r"\\boxed\{\s*([+-]?\d{1,15})\s*\}")
_BOX = "\\boxed"
_INTEGER = re.compile(r"[+-]?\d{1,15}")


def response_part(query: str, prompt: str) -> str:
    """The text that the model wrote, without special tokens."""
    if prompt and query.startswith(prompt):
        response = query[len(prompt) :]
    else:  # decoding doesn't always give the prompt back character by character
        ends = [query.rfind(marker) + len(marker) for marker in ASSISTANT_MARKERS if marker in query]
        response = query[max(ends, default=0) :]
    return _SPECIAL.sub("", response).strip()


def is_correct(response: str, label: str) -> bool:
    """Whether the response's answer equals the label."""
    response, label = response[-MAX_ANSWER_CHARS:], label.strip()
    if not response or not label:
        return False
    answer = response[max(response.rfind(_BOX), 0) :]  # the last box counts, an earlier one was taken back
    boxed = _BOXED_INTEGER.match(answer)
    number = boxed[1] if boxed else answer
    if _INTEGER.fullmatch(number) and _INTEGER.fullmatch(label):
        return int(number) == int(label)
    return _CHECKER.check(label, answer)


def reward_func(queries: list[str], prompts: list[str], labels: list[str], **kwargs: Any) -> dict[str, Any]:
    """Upstream's interface: one reward for each query, the same numbers as scores, and what to log."""
    rewards = []
    for query, prompt, label in zip(queries, prompts, labels, strict=True):
        try:
            rewards.append(float(is_correct(response_part(str(query), str(prompt)), str(label))))
        except Exception:  # a reward of None would end the run
            logger.exception("answer not checked, counted as wrong")
            rewards.append(0.0)
    tensor = torch.tensor(rewards, dtype=torch.float32)
    return {"rewards": tensor, "scores": tensor, "extra_logs": {"math_correct": tensor}}


class Checker:
    """math-verify in a child process that is started on first use and killed when an answer takes too long."""

    def __init__(self, time_limit_s: float = TIME_LIMIT_S) -> None:
        self.time_limit_s = time_limit_s
        self._child: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def check(self, label: str, response: str) -> bool:
        with self._lock:
            try:
                child = self._running()
                child.stdin.write(json.dumps([label, response]) + "\n")
                child.stdin.flush()
                return self._read(child, self.time_limit_s) == "true"
            except BaseException as error:
                self.close()  # the verdict may still come, and would be taken for the next answer's
                if not isinstance(error, OSError):  # a TimeoutError is one, too
                    raise
                logger.warning("math-verify gave no verdict (%s), counted as wrong", error)
                return False

    def close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
            child.stdout.close()
            with contextlib.suppress(OSError):  # what was written to a dead child can't be flushed
                child.stdin.close()

    def _running(self) -> "subprocess.Popen[str]":
        if self._child is None:
            pipe = subprocess.PIPE
            self._child = subprocess.Popen([sys.executable, __file__], stdin=pipe, stdout=pipe, text=True)
            self._read(self._child, START_LIMIT_S)
        return self._child

    @staticmethod
    def _read(child: "subprocess.Popen[str]", limit_s: float) -> str:
        if not select.select([child.stdout], [], [], limit_s)[0]:
            raise TimeoutError(f"no answer within {limit_s:g} s")
        line = child.stdout.readline()
        if not line:
            raise OSError(f"the child ended with status {child.wait()}")
        return line.strip()


def serve() -> None:
    """The child: reads `[label, response]` lines, answers each with `true` or `false`."""
    import resource

    from math_verify import parse, verify

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    # The parent keeps the time, so math-verify's own limits (and the warning that they are off) aren't needed.
    logging.disable(logging.CRITICAL)
    answers = sys.stdout
    sys.stdout = sys.stderr  # nothing else may write between the answers
    answers.write("ready\n")
    answers.flush()
    for line in sys.stdin:
        label, response = json.loads(line)
        try:
            gold = parse(label, parsing_timeout=None) or parse(f"${label}$", parsing_timeout=None)
            verdict = bool(verify(gold, parse(response, parsing_timeout=None), timeout_seconds=None))
        except Exception:
            verdict = False
        answers.write(f"{json.dumps(verdict)}\n")
        answers.flush()


_CHECKER = Checker()
atexit.register(_CHECKER.close)

if __name__ == "__main__":
    serve()
