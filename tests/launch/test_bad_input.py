"""What a user gets wrong, through the whole of `train_ppo_ray`: it ends at once, says which flag and what to do.

Every mistake is made alone, in a run that is good otherwise, and nothing else is named. What goes wrong later is
tested where it is checked: a reward function's answers in tests/trainer/test_reward_check.py.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import REWARD_FILE, write_rows

pytestmark = pytest.mark.slow

LIMIT_S = 30.0
PROBLEM = re.compile(r"^(?:train_ppo_ray stopped: )?([\w.-]+): (.+) Fix: .+\.$", re.MULTILINE)
Changes = dict[str, str | None]  # None: without the flag; an empty text: a switch; without dashes: the environment's
MODEL, DATA, REWARD = "--actor.model_name_or_path", "--data.prompt_dataset", "--reward.remote_url"
AGENT, CKPT = "--train.agent_func_path", "--ckpt.path"
SERVER = "http://127.0.0.1:5000/score"  # scores the runs that aren't about scoring: no file has to be tried

# What is wrong, what is said of it, and the flag or the part of the machine that is named, if it isn't the first.
BAD: list[tuple[Changes, str] | tuple[Changes, str, str]] = [
    ({MODEL: None}, "is missing"),
    ({MODEL: "{here}/none"}, "doesn't exist"),
    ({MODEL: "nobody/nothing"}, "downloads are off"),
    ({MODEL: "{here}/cut"}, "model.safetensors"),
    ({DATA: None}, "is missing"),
    ({DATA: "{here}/none.jsonl"}, "doesn't exist"),
    ({DATA: "{here}/empty.jsonl"}, "is empty"),
    ({DATA: "{here}/broken.jsonl"}, "line 2: not JSON"),
    ({DATA: "{here}/blank.jsonl"}, "has 1 empty values", "--data.input_key"),
    ({"--data.prompt_split": "validation"}, "has no split 'validation', but train"),
    ({"--data.input_key": "question"}, "no column"),
    ({"--data.label_key": "answer"}, "no column"),
    ({"--data.max_len": "8", "--rollout.max_new_tokens": "2"}, "leaves no room"),
    ({"--eval.dataset": "{here}/none.jsonl"}, "doesn't exist"),
    ({REWARD: None, "--reward.num_gpus_per_node": "1"}, "nothing scores the rollouts"),
    ({REWARD: "127.0.0.1:5000"}, "http(s) URL"),
    ({REWARD: "{here}/none.py"}, "doesn't exist"),
    ({REWARD: "{here}/unnamed.py"}, "no `reward_func`"),
    ({REWARD: "{here}/imports.py"}, "No module named 'no_such_package' (line 1)"),
    ({AGENT: "{here}/imports.py", REWARD: None}, "No module named 'no_such_package' (line 1)"),
    ({AGENT: "{here}/imports.py"}, "is never called beside --train.agent_func_path", REWARD),
    ({"--actor.num_gpus_per_node": "0"}, "0"),
    ({"--train.colocate_all": "", "--vllm.num_engines": "2"}, "is 2"),
    ({"RAY_ADDRESS": "{cluster}"}, "asks for 3 GPUs and 3 CPUs (vllm 1, actor 1, ref 1)", "Ray"),
    ({"RAY_ADDRESS": "127.0.0.1:{taken}"}, "another program than Ray listens"),
    ({"RAY_ADDRESS": "127.0.0.1:1"}, "doesn't answer"),
    ({"RAY_ADDRESS": "somewhere"}, "Invalid address format"),
    ({"--train.batch_size": "7"}, "no multiple of --train.micro_batch_size"),
    ({"--train.batch_size": "64"}, "more than a step's rollouts"),
    ({"--rollout.n_samples_per_prompt": "1", "--train.batch_size": "4"}, "every advantage is 0"),
    ({"--rollout.max_new_tokens": "129"}, "more than --data.max_len 128"),
    ({"--rollout.temperature": "0"}, "(0, 2]"),
    ({"--actor.lr_scheduler": "cosin"}, "can't be used"),
    ({"--train.partial_rollout_enable": ""}, "async training only"),
    ({"--pace.enable": ""}, "asynchronous training only"),
    ({"--trace.budget": "64"}, "does nothing without --trace.enable"),
    ({"--ckpt.output_dir": "/proc/none"}, "can't write to /proc"),
    ({CKPT: "{here}/reward.py/below"}, "which is a file"),
    ({"--ckpt.load_enable": "", CKPT: "{here}/damaged"}, "is empty (0 bytes)"),
    ({"--ckpt.load_enable": "", CKPT: "{here}/untagged"}, "has no file `latest`"),
]


@pytest.fixture(scope="session")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., dict[str, Any]]]:
    """Runs `train_ppo_ray` in a child of one process; its imports begin at once."""
    program = Path(__file__).with_name("forked_runs.py")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "HF_"))}
    environment |= {
        "OPENRLHF_PLATFORM": "cpu",
        "HF_DATASETS_CACHE": str(tmp_path_factory.mktemp("datasets")),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # a cluster on the loopback address is found there
    }
    with subprocess.Popen(
        [sys.executable, str(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=tmp_path_factory.mktemp("cwd"),
    ) as process:
        assert process.stdin is not None and process.stdout is not None

        def run(arguments: list[str], **environment: str) -> dict[str, Any]:
            asked = {"arguments": arguments, "environment": environment, "seconds": LIMIT_S}
            print(json.dumps(asked), file=process.stdin, flush=True)
            answer: dict[str, Any] = json.loads(process.stdout.readline())
            return answer

        yield run
        process.stdin.close()


@pytest.fixture
def files(given: dict[str, str], tmp_path: Path) -> Path:
    """What the mistakes name."""
    shutil.copytree(given[MODEL], tmp_path / "cut")
    os.truncate(tmp_path / "cut" / "model.safetensors", 1000)
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "broken.jsonl").write_text('{"prompt": "1 + 2 =", "label": "3"}\n{"prompt": \n')
    write_rows(tmp_path / "blank.jsonl", rows=[{"prompt": "1 + 2 =" if i else "", "label": "3"} for i in range(32)])
    (tmp_path / "reward.py").write_text(REWARD_FILE)
    (tmp_path / "unnamed.py").write_text("def reward(queries, prompts, labels): ...\n")
    (tmp_path / "imports.py").write_text("import no_such_package\n")
    saved = tmp_path / "damaged" / "_actor" / "global_step4"
    saved.mkdir(parents=True)
    (saved / "mp_rank_00_model_states.pt").touch()
    (saved.parent / "latest").write_text(saved.name)
    (tmp_path / "untagged" / "_actor" / "global_step4").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def taken() -> Iterator[int]:
    """The port of a program that isn't Ray."""

    def answer() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:  # closed
                return
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def words(flags: Changes, **names: Any) -> list[str]:
    texts = {flag: value.format(**names) for flag, value in flags.items() if value is not None and flag[0] == "-"}
    return [word for flag, text in texts.items() for word in (flag, *text.split())]


def faults(done: dict[str, Any], named: str, said: str) -> list[str]:
    """What the ending of a run lacks."""
    problems = PROBLEM.findall(done["output"])
    expected = {
        f"ends by itself within {LIMIT_S:g} s": done["code"] is not None,
        "fails": done["code"] not in (0, None),
        f"names {named} alone, with a fix": {flag for flag, _ in problems} == {named},
        f"says {said!r}": any(said in what for _, what in problems),
        "shows no traceback": "Traceback" not in done["output"],
        f"leaves no process, not {done['left']}": not done["left"],
    }
    return [what for what, true in expected.items() if not true]


def test_a_mistake_ends_the_run_at_once_with_its_flag_and_a_fix(
    forked: Callable[..., dict[str, Any]], given: dict[str, str], cluster: None, files: Path, taken: int
) -> None:
    """All in one test, since what they fork from takes longer to come up than they do."""
    import ray

    address = ray.get_runtime_context().gcs_address
    base: Changes = {**given, REWARD: SERVER}
    assert forked([*words(base), "--dry_run"], RAY_ADDRESS="local")["code"] == 0
    found = {}
    for changes, said, *named in BAD:
        names = {"here": files, "taken": taken, "cluster": address}
        variables = {"RAY_ADDRESS": "local"} | {name: f"{value}" for name, value in changes.items() if name[0] != "-"}
        variables = {name: value.format(**names) for name, value in variables.items()}
        done = forked(words(base | changes, **names), **variables)
        if lacks := faults(done, *(named or [next(iter(changes))]), said):
            found[f"{changes}"] = (lacks, done["output"][-2000:])
    assert not found, "\n".join(f"{mistake}: {lacks}\n{output}" for mistake, (lacks, output) in found.items())
