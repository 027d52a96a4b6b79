"""`python -m openrlhf.cli.train_ppo_ray`: upstream's command line, checked before any actor starts.

The order: parse (upstream's flags and ours), check arguments and files, connect to Ray, check the resources, then
upstream's own `__main__` from where it stopped. Exit code 0 only when upstream's training came to its end, or when the
plan of `--dry_run` has been printed.
"""

import argparse
import runpy
import signal
import sys
import traceback
from contextlib import ExitStack
from typing import Any

from openrlhf.launch import flags, watchdog
from openrlhf.launch.problem import LaunchError, cause


def train(args: Any) -> None:
    """Upstream's `train`, for callers that build `args` themselves.

    A name of upstream's file that they have set on this module replaces it there, as it would on upstream's own.
    """
    _choose_pipeline(args)
    upstream = runpy.run_path(flags.UPSTREAM_CLI)["train"]
    names = upstream.__globals__
    names.update({name: value for name, value in globals().items() if name in names and not name.startswith("__")})
    upstream(args)


def main() -> int:
    """Runs the command line; returns the exit code. What stopped a run is the last thing that it prints."""
    # A shell starts background jobs with SIGINT ignored, and Python then leaves it so: the watchdog needs it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with ExitStack() as stack, flags.parsed_by(lambda parsed: _prepare(parsed, stack)):
            runpy.run_path(flags.UPSTREAM_CLI, run_name="__main__")
    except LaunchError as error:
        return _stopped(str(error), code=2)
    except KeyboardInterrupt:
        died = watchdog.failure()
        return _stopped("interrupted", code=130) if died is None else _stopped(str(died), code=1)
    except Exception as error:
        traceback.print_exception(error)
        return _stopped(cause(error), code=1)
    return 0


def _prepare(parsed: argparse.Namespace, stack: ExitStack) -> None:
    """Everything that can be known to fail before the first actor. Raises LaunchError with all problems found."""
    from openrlhf.launch import arguments, cluster, dry_run, inputs, resources
    from openrlhf.utils.config import hierarchize

    args = hierarchize(parsed)
    problems = arguments.check(args)
    if args.dry_run and not problems:
        print(dry_run.text(args))
        sys.exit()
    problems = problems or inputs.check(args)
    if problems:
        raise LaunchError(*problems)
    plan = resources.plan(args)
    stack.enter_context(cluster.connected(plan))
    problems = resources.check(plan, *cluster.resources())
    if problems:
        raise LaunchError(*problems)
    _choose_pipeline(args)


def _choose_pipeline(args: Any) -> None:
    """Tells the engines' module which pipeline they are started for; callers without our flags get upstream's."""
    from openrlhf.launch import reading
    from openrlhf.trainer.ray import vllm_engine

    if not reading.trains_from_pool(args):
        vllm_engine.use_pool(None)
    elif reading.grows_trees(args):
        vllm_engine.use_pool(reading.pool_settings(args), segment_tokens=args.trace.segment_tokens)
    else:
        vllm_engine.use_pool(reading.pool_settings(args))


def _stopped(why: str, *, code: int) -> int:
    print(f"\ntrain_ppo_ray stopped: {why}", file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
