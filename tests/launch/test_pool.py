"""The pool pipeline at launch: what its flags need, what they rule out, and the checkpoint that a run resumes."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from openrlhf.launch import arguments, inputs, pool, prompt_data, storage
from openrlhf.launch.problem import Problem
from pace.config import PaceConfig
from pace.durable import DurablePool
from pace.types import PoolDraw, Trajectory, TrajectoryGroup, VersionSpan

Run = Callable[..., SimpleNamespace]
Rows = Callable[..., str]
POOL = {"train__async_enable": True, "pace__enable": True}
LOAD = "--ckpt.load_enable"


def only(problems: list[Problem]) -> Problem:
    """The single problem."""
    assert len(problems) == 1, "\n".join(map(str, problems))
    return problems[0]


@pytest.fixture
def pooled(run: Run) -> Run:
    """Makes the arguments of a run with the pool, with changes."""
    return lambda **changes: run(**POOL | changes)


# Flags.

GOOD: dict[str, dict[str, Any]] = {
    "the defaults": {},
    "partial rollouts, which it has always": {"train__partial_rollout_enable": True},
    "sleep that upstream turns off": {"vllm__enable_sleep": True},
    "shared GPUs of the models": {"train__colocate_all": True},
    "generation batches that aren't set": {"rollout__vllm_generate_batch_size": 0},
    "strict": {"pace__strict": True},
    "strict, with what it means": {"pace__strict": True, "pace__admission": "areal", "pace__k_max": 0},
    "strict at another temperature": {"pace__strict": True, "rollout__temperature": 0.7},
    "raw staleness at another temperature": {"pace__rank": "raw", "rollout__temperature": 0.7, "rollout__top_p": 0.9},
    "fewer in flight than a batch": {"pace__max_inflight_groups": 1},
    "one batch of capacity": {"pace__pool_capacity_groups": 4},
    "a bound and a ranking": {"pace__admission": "dora", "pace__admission_window": 1, "pace__rank": "oldest"},
    "a bound above the cap": {"pace__admission": "areal", "pace__admission_eta": 4, "pace__k_max": 1},
    "m2po": {"pace__loss": "m2po"},
    "decoupled with dual clip": {"pace__loss": "decoupled", "actor__dual_clip": 3.0},
    "correction by upstream's loss": {"algo__advantage__is_correction_level": "token"},
    "gspo by upstream's loss": {"actor__policy_loss_type": "gspo"},
    "step size": {"pace__ess_step_size": True, "ds__zero_stage": 3},
    "adapters": {"ds__lora__rank": 8},
    "dynamic filtering": {"algo__dynamic_filtering_enable": True},
    "log elsewhere": {"pace__log_dir": "log"},
}


@pytest.mark.parametrize("changes", GOOD.values(), ids=GOOD.keys())
def test_what_the_pool_trains_with_passes(pooled: Run, changes: dict[str, Any]) -> None:
    assert arguments.check(pooled(**changes)) == []


# (changes, flag, text in the description, text in the fix)
BAD: list[tuple[dict[str, Any], str, str, str]] = [
    ({"train__async_enable": False}, "--pace.enable", "asynchronous", "--train.async_enable"),
    ({"vllm__num_engines": 0}, "--vllm.num_engines", "rollouts", "1 or more"),
    ({"rollout__vllm_generate_batch_size": 2}, "--rollout.vllm_generate_batch_size", "nothing", "max_inflight_groups"),
    ({"rollout__vllm_generate_batch_size": 8}, "--rollout.vllm_generate_batch_size", "nothing", "drop it"),
    ({"train__async_queue_size": 2}, "--train.async_queue_size", "nothing", "--pace.pool_capacity_groups"),
    ({"train__async_queue_size": 0}, "--train.async_queue_size", "nothing", "drop it"),
    ({"vllm__enable_sleep": True, "train__colocate_all": True}, "--vllm.enable_sleep", "never rest", "drop it"),
    ({"rollout__temperature": 0.7}, "--pace.rank", "--rollout.temperature 0.7", "--rollout.temperature 1"),
    ({"rollout__top_p": 0.9}, "--pace.rank", "--rollout.top_p 0.9", "--pace.rank raw"),
    (
        {"rollout__temperature": 0.7, "rollout__top_p": 0.9},
        "--pace.rank",
        "--rollout.temperature 0.7 and --rollout.top_p 0.9",
        "--rollout.temperature 1 and --rollout.top_p 1",
    ),
    ({"pace__pool_capacity_groups": 3}, "--pace.pool_capacity_groups", "(4 groups), got 3", "use 0"),
    ({"pace__gamma": 0.0}, "--pace.gamma", "0.01", "use 1, 2 or 4"),
    ({"pace__pfs_window": 16}, "--pace.pfs_window_min", "at most", "widen"),
    (
        {"pace__strict": True, "pace__admission": "dora"},
        "--pace.admission",
        "dora contradicts --pace.strict",
        "one of",
    ),
    ({"pace__strict": True, "pace__admission_eta": 2}, "--pace.admission_eta", "makes it 0", "one of"),
    ({"pace__strict": True, "pace__k_max": 2}, "--pace.k_max", "makes it 0", "one of"),
    ({"pace__strict": True, "pace__max_reject_rate": 0.2}, "--pace.max_reject_rate", "makes it 0", "one of"),
    (
        {"pace__loss": "decoupled", "algo__advantage__is_correction_level": "token"},
        "--algo.advantage.is_correction_level",
        "corrects",
        "--pace.loss upstream",
    ),
    (
        {"pace__loss": "m2po_mask", "algo__advantage__is_correction_level": "seq"},
        "--algo.advantage.is_correction_level",
        "--pace.loss m2po_mask",
        "drop it",
    ),
    ({"pace__loss": "m2po", "actor__policy_loss_type": "gspo"}, "--actor.policy_loss_type", "gspo does", "drop it"),
    ({"pace__loss": "m2po", "actor__dual_clip": 3.0}, "--actor.dual_clip", "nothing", "--pace.loss decoupled"),
    ({"pace__loss": "decoupled", "actor__eps_clip": 1.5}, "--actor.eps_clip", "1.5", "0.2"),
    (
        {"pace__loss": "decoupled", "actor__eps_clip_low_high": [1.5, 0.2]},
        "--actor.eps_clip_low_high",
        "1.5",
        "0.2",
    ),
    (
        {"algo__dynamic_filtering_enable": True, "algo__dynamic_filtering_range": [1.0, 0.0]},
        "--algo.dynamic_filtering_range",
        "keeps no rollout",
        "0 1",
    ),
]


@pytest.mark.parametrize(("changes", "flag", "what", "fix"), BAD, ids=[f"{i} {case[1]}" for i, case in enumerate(BAD)])
def test_a_flag_that_the_pool_cant_use(pooled: Run, changes: dict[str, Any], flag: str, what: str, fix: str) -> None:
    problem = only(arguments.check(pooled(**changes)))
    assert problem.flag == flag and what in problem.what and fix in problem.fix


def test_flags_of_the_pool_without_it(run: Run) -> None:
    problem = only(arguments.check(run(pace__rank="raw")))
    assert problem.flag == "--pace.rank" and "--pace.enable" in problem.fix and "drop it" in problem.fix
    problem = only(arguments.check(run(pace__rank="raw", pace__strict=True, pace__log_dir="log")))
    assert problem.flag == "--pace.strict" and "drop them" in problem.fix
    assert "--pace.rank, --pace.log_dir" in problem.what


def test_callers_without_the_forks_flags_are_left_alone(run: Run) -> None:
    args = run()
    del args.pace
    assert arguments.check(args) == [] and inputs.check(args) == []


def test_the_loss_takes_every_clip_that_passes(pooled: Run) -> None:
    pytest.importorskip("torch")
    from openrlhf.trainer.losses.decoupled import DecoupledPpoLoss

    for low in (0.0, 1.0, 1.5):
        accepted = not [*pool.check(pooled(pace__loss="decoupled", actor__eps_clip_low_high=[low, 0.2]))]
        if accepted:
            DecoupledPpoLoss(clip_low=low, clip_high=0.2)
        else:
            with pytest.raises(ValueError, match="clip_low"):
                DecoupledPpoLoss(clip_low=low, clip_high=0.2)


def test_the_folder_of_the_log(pooled: Run, run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    blocked = {"pace__log_dir": str(tmp_path / "file")}
    problem = only([*storage.check(pooled(**blocked))])
    assert problem.flag == "--pace.log_dir" and "is a file" in problem.what
    assert [*storage.check(pooled(pace__log_dir=str(tmp_path / "new")))] == []
    assert [*storage.check(run(**blocked))] == []  # without the pool there is no such log


# Data.


@pytest.mark.parametrize("rows", [2, 3, 5, 7])
def test_a_short_last_batch_is_no_matter(pooled: Run, rows_file: Rows, rows: int) -> None:
    changes = {"actor__num_gpus_per_node": 2, "algo__kl__init_coef": 0.0, "rollout__micro_batch_size": 1}
    changes |= {"train__micro_batch_size": 1, "data__prompt_dataset": rows_file(rows)}
    assert [*prompt_data.check(pooled(**changes), None)] == []


def test_a_data_set_without_prompts(pooled: Run, rows_file: Rows) -> None:
    problem = only([*prompt_data.check(pooled(data__prompt_dataset=rows_file(0)), None)])
    assert problem.flag == "--data.prompt_dataset"


def test_an_actor_frozen_for_the_whole_run(pooled: Run, rows_file: Rows) -> None:
    """Batches go on over the end of an episode: two episodes of 6 prompts are 3 batches of 4."""
    changes = {"data__prompt_dataset": rows_file(6), "train__num_episodes": 2}
    assert [*prompt_data.check(pooled(**changes, critic__freezing_steps=1), None)] == []
    problem = only([*prompt_data.check(pooled(**changes, critic__freezing_steps=2), None)])
    assert problem.flag == "--critic.freezing_steps" and "3 steps" in problem.what


# Resuming.

TAG = "global_step1"


def group_of(group_id: str, prompt_id: str, size: int) -> TrajectoryGroup:
    """A ready group of version 0."""
    trajectories = tuple(
        Trajectory(
            trajectory_id=f"{group_id}/{i}",
            group_id=group_id,
            prompt_id=prompt_id,
            spans=(VersionSpan(0, 5),),
            completed_version=0,
        )
        for i in range(size)
    )
    return TrajectoryGroup(group_id=group_id, prompt_id=prompt_id, trajectories=trajectories, ready_version=0)


def save(folder: Path, *, config: PaceConfig | None = None, size: int = 4, **changes: Any) -> Path:
    """A checkpoint after one step by the real pool, with a ready group and others in flight; the pool's folder."""
    settings = {"batch_groups": 4, "n_prompts": 32, "n_episodes": 1, "seed": 42} | changes
    made = DurablePool(
        config or PaceConfig(enable=True), folder=folder / "_pool_journal", fresh=True, clock=lambda: 1.0, **settings
    )
    for lease in made.lease(8)[: settings["batch_groups"] + 1]:
        made.put(group_of(lease.group_id, lease.prompt_id, size), b"payload")
    assert isinstance(made.draw(0), PoolDraw)
    made.commit(0)
    made.set_version(1)
    (folder / "_pool").mkdir()
    made.save(folder / "_pool" / TAG)
    (folder / "_actor" / TAG).mkdir(parents=True)
    (folder / "_actor" / "latest").write_text(TAG)
    return folder / "_pool" / TAG


@pytest.fixture
def resumed(pooled: Run, tmp_path: Path) -> Run:
    return lambda **changes: pooled(**{"ckpt__path": str(tmp_path), "ckpt__load_enable": True} | changes)


def problems_of(args: SimpleNamespace) -> list[Problem]:
    """What is wrong with the pool's part of the checkpoint, the number of prompts included."""
    return [*pool.check_saved(args), *pool.check_rows(args, 32)]


def test_a_fitting_checkpoint(resumed: Run, tmp_path: Path) -> None:
    save(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert problems_of(resumed()) == []
    assert problems_of(resumed(pace__gamma=2.0, pace__k_max=3, pace__loss="m2po")) == []
    assert sorted(tmp_path.rglob("*")) == before


def test_the_names_are_those_of_the_pipeline(tmp_path: Path) -> None:
    assert (save(tmp_path) / pool.STATE).is_file()


def test_nothing_to_resume(resumed: Run, tmp_path: Path) -> None:
    assert problems_of(resumed()) == []
    save(tmp_path, seed=1)
    assert problems_of(resumed(ckpt__load_enable=False)) == []
    assert problems_of(resumed(pace__enable=False)) == []
    (tmp_path / "_actor" / "latest").unlink()  # checkpoints.check reports it
    assert problems_of(resumed()) == []


def test_a_checkpoint_saved_without_the_pool(resumed: Run, tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / "_pool").rename(tmp_path / "elsewhere")
    problem = only(problems_of(resumed()))
    assert problem.flag == LOAD and TAG in problem.what and "drop --pace.enable" in problem.fix


def test_a_tag_without_a_pool(resumed: Run, tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / "_actor" / "latest").write_text("global_step2")
    problem = only(problems_of(resumed()))
    assert problem.flag == LOAD and "global_step2" in problem.what and f"write {TAG} into" in problem.fix
    (tmp_path / "_pool" / TAG / pool.STATE).unlink()
    problem = only(problems_of(resumed()))
    assert "restore it" in problem.fix and "write" not in problem.fix


# (settings of the saved pool, flag, text in the description, text in the fix)
OTHERS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "batch": ({"batch_groups": 2}, "--rollout.batch_size", "saved with 2", "--rollout.batch_size 2"),
    "seed": ({"seed": 7}, "--train.seed", "is 42", "--train.seed 7"),
    "prompts": ({"n_prompts": 31}, "--data.prompt_dataset", "filled from 31", "--data.max_samples"),
    "group size": ({"size": 2}, "--rollout.n_samples_per_prompt", "with 2", "--rollout.n_samples_per_prompt 2"),
    "ranking": ({"config": PaceConfig(rank="random")}, "--pace.rank", "with random", "ranking"),
}


@pytest.mark.parametrize(("saved", "flag", "what", "fix"), OTHERS.values(), ids=OTHERS.keys())
def test_a_checkpoint_of_other_settings(
    resumed: Run, tmp_path: Path, saved: dict[str, Any], flag: str, what: str, fix: str
) -> None:
    save(tmp_path, **saved)
    problem = only(problems_of(resumed()))
    assert problem.flag == flag and what in problem.what and fix in problem.fix


def test_random_ranking_of_a_checkpoint_without(resumed: Run, tmp_path: Path) -> None:
    save(tmp_path)
    problem = only(problems_of(resumed(pace__rank="random")))
    assert problem.flag == "--pace.rank" and "another one than random" in problem.what


@pytest.mark.parametrize("episodes", [2, 3])
def test_episodes_are_judged_as_the_pool_loads_them(resumed: Run, tmp_path: Path, episodes: int) -> None:
    from pace.leased_pool import LeasedPool
    from pace.state import StateError

    saved = save(tmp_path, n_episodes=2)
    state = json.loads((saved / pool.STATE).read_bytes())
    core = LeasedPool(
        PaceConfig(), batch_groups=4, n_prompts=32, n_episodes=episodes, seed=42, clock=lambda: 0.0, start_version=0
    )
    try:
        core.load_state_dict(state, restart_in_flight=True)
        assert problems_of(resumed(train__num_episodes=episodes)) == []
    except StateError:
        problem = only(problems_of(resumed(train__num_episodes=episodes)))
        assert problem.flag == "--train.num_episodes" and "use --train.num_episodes 2" in problem.fix


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut short": lambda content: content[: len(content) // 2],
    "something else": lambda content: b"[]",
    "another version's": lambda content: content.replace(b'"arrivals"', b'"arrived"'),
    "without its prompts": lambda content: content.replace(b'"prompts"', b'"rows"'),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_state(resumed: Run, tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    file = save(tmp_path) / pool.STATE
    file.write_bytes(damage(file.read_bytes()))
    problem = only(problems_of(resumed()))
    assert problem.flag == LOAD and str(file) in problem.what and "restore it" in problem.fix


def test_any_cut_of_a_state_is_one_problem(resumed: Run, tmp_path: Path) -> None:
    file = save(tmp_path) / pool.STATE
    content, args = file.read_bytes(), resumed()
    for cut in random.Random(0).sample(range(len(content)), 20):
        file.write_bytes(content[:cut])
        assert only(problems_of(args)).flag == LOAD


def test_the_inputs_of_a_run_include_its_pool(resumed: Run, tmp_path: Path) -> None:
    import zipfile

    save(tmp_path, seed=7, n_prompts=31)
    for name in ("zero_pp_rank_0_mp_rank_00_optim_states.pt", "mp_rank_00_model_states.pt"):
        with zipfile.ZipFile(tmp_path / "_actor" / TAG / name, "w") as archive:
            archive.writestr("archive/data.pkl", b"0" * 500)
    assert {problem.flag for problem in inputs.check(resumed())} == {"--train.seed", "--data.prompt_dataset"}
    (tmp_path / "_actor" / TAG / name).unlink()
    assert [p.flag for p in inputs.check(resumed()) if p.flag != "--data.prompt_dataset"] == [LOAD]
