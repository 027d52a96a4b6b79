"""`python -m openrlhf.cli.evaluate_agent`: plays an agent's episodes with a model and prints how well they went.

The metrics of a task are those its agent logs; avg@k is the mean score over k episodes of each row. The flags are
those of train_ppo_ray wherever it has them. Exit code 1 when no episode could be played, 2 for bad flags.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from openrlhf.agents.evaluation import Episode, Row, play_all, summary
from openrlhf.launch import user_code
from pace.table import aligned

FILE_TYPES = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(argv)
    _check(parser, args)
    rows = read_rows(parser, args)
    trial = user_code.start_trial(user_code.AGENT_FLAG, "agent", args.agent)
    problems = trial if isinstance(trial, list) else trial.problems()
    if problems:
        parser.error(str(problems[0]))
    episodes = asyncio.run(_evaluate(args, rows))
    print(table(summary(episodes), args.repeats))
    errors = [episode.error for episode in episodes if episode.error]
    if errors:
        print(f"{len(errors)} of {len(episodes)} episodes failed, e.g.: {errors[0]}", file=sys.stderr)
    return 1 if len(errors) == len(episodes) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m openrlhf.cli.evaluate_agent", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--actor.model_name_or_path", dest="model", required=True, help="model folder or name")
    add("--train.agent_func_path", dest="agent", required=True, help="Python file with the class AgentExecutor")
    add("--eval.dataset", dest="dataset", required=True, help="file (.jsonl, .json, .parquet, .csv) or dataset name")
    add("--eval.split", dest="split", default="test", help="split of a dataset given by name (default: test)")
    add("--data.input_key", dest="input_key", default="prompt", help="column of the prompt (default: prompt)")
    add("--data.label_key", dest="label_key", default="label", help="column of the label (default: label)")
    add("--data.apply_chat_template", dest="chat", action="store_true", help="render the prompt; not for tool agents")
    add("--data.max_samples", dest="rows", type=int, default=0, help="the first so many rows; 0: all (default: 0)")
    add("--data.max_len", dest="max_len", type=int, default=4096, help="tokens of a whole episode (default: 4096)")
    add("--eval.n_samples_per_prompt", dest="repeats", type=int, default=1, help="k of avg@k (default: 1)")
    add("--eval.temperature", dest="temperature", type=float, default=1.0, help="0: greedy (default: 1.0)")
    add("--rollout.top_p", dest="top_p", type=float, default=1.0, help="nucleus sampling (default: 1.0)")
    add("--vllm.tensor_parallel_size", dest="tp", type=int, default=1, help="GPUs of the engine (default: 1)")
    add("--vllm.gpu_memory_utilization", dest="memory", type=float, default=0.9, help="share (default: 0.9)")
    add("--train.seed", dest="seed", type=int, default=0, help="of the engine's sampling (default: 0)")
    add("--concurrency", type=int, default=64, help="episodes at the same time (default: 64)")
    add("--episode_timeout_s", dest="timeout_s", type=float, default=3600.0, help="then it scores 0 (default: 3600)")
    add("--output", type=Path, help="JSONL file with a line for every episode, its text included")
    return parser


def _check(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    ranges = [
        ("--data.max_len", args.max_len >= 2, "at least 2"),
        ("--data.max_samples", args.rows >= 0, "at least 0"),
        ("--eval.n_samples_per_prompt", args.repeats >= 1, "at least 1"),
        ("--eval.temperature", 0 <= args.temperature < float("inf"), "at least 0"),
        ("--rollout.top_p", 0 < args.top_p <= 1, "above 0 and at most 1"),
        ("--vllm.tensor_parallel_size", args.tp >= 1, "at least 1"),
        ("--vllm.gpu_memory_utilization", 0 < args.memory <= 1, "above 0 and at most 1"),
        ("--concurrency", args.concurrency >= 1, "at least 1"),
        ("--episode_timeout_s", args.timeout_s > 0, "above 0"),
    ]
    for flag, fine, wanted in ranges:
        if not fine:
            parser.error(f"{flag}: must be {wanted}")
    if os.path.sep in args.model and not os.path.isfile(os.path.join(args.model, "config.json")):
        parser.error(f"--actor.model_name_or_path: {args.model} holds no model (no config.json); check the spelling")
    if args.output is not None and not os.access(args.output.parent, os.W_OK):
        parser.error(f"--output: {args.output.parent} can't be written to; name another file")


def read_rows(parser: argparse.ArgumentParser, args: argparse.Namespace) -> list[Row]:
    """The dataset's rows; ends the program with the flag to change when there are none."""
    import datasets

    kind = FILE_TYPES.get(Path(args.dataset).suffix)
    try:
        if kind:
            data = datasets.load_dataset(kind, data_files=args.dataset, split="train")
        else:
            data = datasets.load_dataset(args.dataset, split=args.split)
    except Exception as error:
        parser.error(f"--eval.dataset: {args.dataset} can't be read ({error}); name a file or a dataset")
    if args.rows:
        data = data.select(range(min(args.rows, len(data))))
    for flag, key in (("--data.input_key", args.input_key), ("--data.label_key", args.label_key)):
        if key not in data.column_names:
            parser.error(f"{flag}: there is no column {key!r}; the columns are {', '.join(data.column_names)}")
    if len(data) == 0:
        parser.error(f"--eval.dataset: {args.dataset} has no rows")
    if not args.chat and not isinstance(data[0][args.input_key], str):
        parser.error(f"--data.input_key: {args.input_key!r} holds messages; add --data.apply_chat_template")
    return [
        Row(number, row[args.input_key], str(row[args.label_key]), str(row.get("datasource", "dataset")))
        for number, row in enumerate(data)
    ]


async def _evaluate(args: argparse.Namespace, rows: list[Row]) -> list[Episode]:
    from tqdm import tqdm

    from openrlhf.trainer.ray.episode_engine import EpisodeEngine

    sampling = {"temperature": args.temperature, "top_p": args.top_p, "logprobs": None, "max_tokens": None}
    engine = await EpisodeEngine.start(
        args.model,
        agent_func_path=args.agent,
        max_length=args.max_len,
        sampling=sampling,
        seed=args.seed,
        tensor_parallel_size=args.tp,
        gpu_memory_utilization=args.memory,
        max_num_seqs=args.concurrency,
    )

    async def play(row: Row) -> dict[str, Any]:
        return await engine.play(engine.render(row.prompt) if args.chat else row.prompt, row.label)

    settings = {"repeats": args.repeats, "concurrency": args.concurrency, "timeout_s": args.timeout_s}
    episodes: list[Episode] = []
    try:
        with tqdm(total=len(rows) * args.repeats, desc="episodes") as bar, _writer(args.output) as output:
            async for episode, response in play_all(rows, play, **settings):
                episodes.append(episode)
                text = engine.text(response["observation_tokens"]) if response else ""
                output.write(json.dumps({**asdict(episode), "text": text}) + "\n")
                bar.set_postfix(avg=sum(e.score for e in episodes) / len(episodes), refresh=False)
                bar.update()
    finally:
        engine.close()
    return episodes


def _writer(path: Path | None) -> Any:
    return open(path or os.devnull, "w")


def table(means: dict[str, dict[str, float]], k: int) -> str:
    """The summary for people."""
    names = list(means["all"])
    titles = [f"{name}@{k}" if name in ("avg", "pass") else name for name in names]
    rows = [["", *titles]]
    for source, values in means.items():
        if source != "all" or len(means) > 2:
            cells = (f"{values[name]:.{0 if name == 'episodes' else 3}f}" if name in values else "-" for name in names)
            rows.append([source, *cells])
    return aligned(rows)


if __name__ == "__main__":
    sys.exit(main())
