"""What `--dry_run` prints: the plan of a run, from its flags alone.

Invariant: nothing is started, downloaded or read; the numbers are those that the checks and the pipeline work with.

In: the nested arguments, checked by `arguments.check`. Out: text.
"""

from collections import Counter
from types import SimpleNamespace

from openrlhf.launch import batches, reading, resources
from trace_alloc.config import from_args as tree_settings

Rows = list[tuple[str, str]]
MODEL_ACTORS = {
    "actor": "PolicyModelActor",
    "critic": "CriticModelActor",
    "ref": "ReferenceModelActor",
    "reward": "RewardModelActor",
}


def text(args: SimpleNamespace) -> str:
    """The plan, in sections of aligned lines."""
    sections = {
        "Pipeline": _pipeline(args),
        "Placement": _placement(args),
        "Actors": [(name, str(count)) for name, count in actors(args).items()],
        "Batches": _batches(args),
    }
    if reading.trains_from_pool(args):
        sections["PACE"] = _pool(args)
    if reading.grows_trees(args):
        sections["TRACE"] = _trees(args)
    width = max(len(name) for rows in sections.values() for name, _ in rows)
    blocks = ([title, *(f"  {name:<{width}}  {value}" for name, value in rows)] for title, rows in sections.items())
    return "\n\n".join("\n".join(lines) for lines in blocks)


def actors(args: SimpleNamespace) -> Counter[str]:
    """The Ray actors of the run by class."""
    found: Counter[str] = Counter()
    if reading.trains_from_pool(args):
        found.update(["PoolTrainer", "RolloutManagerActor", "TrajectoryPoolActor"])
        found["TreeTrainingActor" if reading.grows_trees(args) else "TrainingActor"] = 1
    elif args.train.async_enable:
        found.update(["PPOTrainerAsync", "GenerateSamplesActor", "TrainingActor", "VLLMLock"])
        found["Queue"] = 2
    else:
        found["PPOTrainer"] = 1
    if reading.grows_trees(args):
        found["TreeRolloutActor"] = args.trace.num_actors
        found["PredictorActor"] = 1
    found["RolloutRayActor"] = args.vllm.num_engines
    found.update({MODEL_ACTORS[group.name]: group.world for group in reading.groups(args)})
    return found


def _pipeline(args: SimpleNamespace) -> Rows:
    if not reading.trains_from_pool(args):
        how = "asynchronous, through upstream's queue" if args.train.async_enable else "synchronous, upstream's own"
        return [("training", how), ("policy loss", args.actor.policy_loss_type)]
    settings = reading.pool_settings(args)
    what = "rollout trees" if reading.grows_trees(args) else "groups"
    how = "synchronous, through the pool" if settings.strict else "asynchronous, through the pool"
    loss = args.actor.policy_loss_type if settings.loss == "upstream" else settings.loss
    return [("training", f"{how}, of {what}"), ("policy loss", loss)]


def _placement(args: SimpleNamespace) -> Rows:
    plan = resources.plan(args)
    size, actor = args.vllm.tensor_parallel_size, args.actor
    engines = f"{args.vllm.num_engines} x {size} GPU{'s' if size > 1 else ''}"
    nodes = f"{actor.num_nodes} x {actor.num_gpus_per_node} GPUs, ZeRO-{args.ds.zero_stage}, {args.ds.param_dtype}"
    bundles = {bundle.name: bundle for bundle in plan.bundles}
    each = {name: f"{bundle.gpus:g} GPU, {bundle.cpus} CPU" for name, bundle in bundles.items()}
    rows = [(name, f"{count} x {each[name]}") for name, count in plan.by_name().items()]
    return [
        *rows,
        ("vLLM engines", engines),
        ("actor nodes", nodes),
        ("in all", f"{plan.gpus:g} GPUs, {plan.cpus} CPUs"),
    ]


def _batches(args: SimpleNamespace) -> Rows:
    prompts, samples = reading.prompts_per_step(args), args.rollout.n_samples_per_prompt
    rollouts = prompts * samples
    processes = batches.data_parallel(args, reading.actor(args))
    rows = [
        ("a step", f"{prompts} prompts x {samples} rollouts = {rollouts}"),
        ("data-parallel processes", str(processes)),
        ("optimizer steps in it", f"{max(1, rollouts // args.train.batch_size) * args.train.max_epochs}"),
    ]
    if args.train.dynamic_batch_enable:
        return [*rows, ("micro-batches", f"by tokens, {args.train.max_tokens_per_gpu} on each process")]
    share = args.train.batch_size // processes
    micro = args.train.micro_batch_size
    return [*rows, ("on each process", f"{share // micro} micro-batches x {micro} rollouts = {share}")]


def _pool(args: SimpleNamespace) -> Rows:
    settings, groups = reading.pool_settings(args).resolve(), args.rollout.batch_size
    admission = {"areal": f"areal, eta {settings.admission_eta}", "dora": f"dora, window {settings.admission_window}"}
    rejects = f"above {settings.target_batches * groups:g} ready groups, at most {settings.max_reject_rate:.0%}"
    return [
        ("rejection", f"{rejects}, by {settings.rank}" if settings.max_reject_rate else "none"),
        ("hard cap", "none" if settings.k_max < 0 else f"{settings.k_max} versions"),
        ("admission", admission.get(settings.admission, settings.admission)),
        ("pool holds", f"{settings.capacity(groups)} groups"),
        ("in flight", f"{settings.inflight_limit(groups)} groups"),
    ]


def _trees(args: SimpleNamespace) -> Rows:
    settings, groups = tree_settings(args), args.rollout.batch_size
    flat = groups * args.rollout.n_samples_per_prompt
    bare = settings.bare_budget(flat)
    per_bare = 0 if settings.flat else settings.continuations
    return [
        ("allocation", settings.allocation),
        ("budget", f"{bare} bare rollouts + {bare * per_bare} continuations = {bare + bare * per_bare / 2:g} units"),
        ("candidates", f"{settings.n_candidates(groups, flat)} prompts for {groups} trees"),
        ("credit", settings.credit),
        ("predictor", settings.predictor if settings.predicts else "none"),
    ]
