"""The benchmark's own checker, run for one trajectory among many.

It keeps the instances that it calls in its module's globals and makes those that are missing. They are put there
beforehand, under names of this trajectory alone, and taken away again.

Invariant: the verdict depends on the task and the calls, not on what ran before or at the same time, and nothing stays
behind.

In: a task and what was called. Out: whether every user turn's state and results are right. Source: trace.md 12.
"""

import logging
from collections.abc import Sequence
from uuid import uuid4

from openrlhf.agents.bfcl_data import PACKAGE, Task, package
from openrlhf.agents.bfcl_world import backends

logger = logging.getLogger(__name__)


def passes(task: Task, calls: Sequence[Sequence[Sequence[str]]]) -> bool:
    """Whether the package accepts these calls: Python expressions, by user turn and round.

    They must be `bfcl_calls.expression`s: the checker evaluates them. Too few user turns never pass.
    Raises MissingPackage, and RuntimeError for a version of the package that works in another way.
    """
    if len(calls) != task.n_turns:
        return False
    checker = package("eval_checker.multi_turn_eval.multi_turn_checker")
    instances = vars(package("eval_checker.multi_turn_eval.multi_turn_utils"))
    player = f"trajectory_{uuid4().hex}"
    ours = {
        f"{name}_eval_{task.id}_{kind}_instance": backend
        for name in (player, f"{player}_ground_truth")
        for kind, backend in backends(task).items()
    }
    instances.update(ours)
    rounds = [[list(one) for one in turn if one] for turn in calls]
    try:
        verdict = checker.multi_turn_checker(rounds, task.answer, task.entry, task.subset, player)
    except Exception:  # it compares what the model's values have made of the back ends
        logger.warning("the checker failed for %s; the reward is 0", task.id, exc_info=True)
        return False
    finally:
        found = [name for name in list(instances) if name.startswith(player)]
        for name in found:
            del instances[name]
    if len(found) != len(ours):
        raise RuntimeError(f"bfcl-eval names its instances in another way; install {PACKAGE}")
    return bool(verdict["valid"])
