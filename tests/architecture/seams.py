"""What the fork relies on of upstream, vLLM, DeepSpeed and Ray: names, signatures, attributes; and who does so."""

from dataclasses import dataclass, field

CPU = "openrlhf/platforms/cpu.py"


@dataclass(frozen=True)
class Seam:
    """`name` (dotted for a method) of the module `module` exists; `parameters` are its first ones, in this order."""

    relied_on_by: str
    module: str
    name: str
    parameters: tuple[str, ...] | None = None
    sets: tuple[str, ...] = field(default=())  # attributes that the class sets on itself

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"


ENGINE_ARGS = "vllm.engine.arg_utils"
WEIGHTS = "vllm.distributed.weight_transfer"
ENGINE = "openrlhf/trainer/ray/rollout_actor.py"
WRAP = "openrlhf/trainer/ray/vllm_worker_wrap.py"
SENDER = "openrlhf/trainer/ray/weight_sender.py"
SEAMS = [
    Seam(CPU, "deepspeed.comm.torch", "build_shm_op", ()),
    Seam(CPU, "deepspeed.runtime.zero.partition_parameters", "Init._allgather_params_coalesced"),
    Seam(CPU, "deepspeed.runtime.zero.partition_parameters", "Init.get_partition_dp_group", ("self", "param")),
    Seam(CPU, "openrlhf.trainer.ppo_utils.replay_buffer", "NaiveReplayBuffer", sets=("target_device",)),
    Seam(
        CPU,
        "openrlhf.trainer.ray.vllm_worker_wrap",
        "WorkerWrap.update_weight",
        ("self", "name", "dtype", "shape", "empty_cache"),
    ),
    Seam(CPU, "openrlhf.trainer.ray.vllm_worker_wrap", "WorkerWrap", sets=("_model_update_group",)),
    Seam(CPU, "openrlhf.utils.deepspeed.deepspeed", "init_device_mesh"),
    Seam(
        CPU,
        "openrlhf.utils.deepspeed.deepspeed",
        "DeepspeedStrategy.moving_average",
        ("self", "model", "model_ema", "beta", "device"),
    ),
    Seam(CPU, "openrlhf.utils.deepspeed.deepspeed_utils", "get_train_ds_config"),
    Seam(
        CPU,
        "openrlhf.utils.distributed_util",
        "stateless_init_process_group",
        ("master_address", "master_port", "rank", "world_size", "device"),
    ),
    Seam(CPU, "openrlhf.utils.utils", "convert_to_torch_dtype", ("param_dtype",)),
    Seam(CPU, ENGINE_ARGS, "EngineArgs.create_engine_config", ("self",)),
    *(
        Seam(CPU, ENGINE_ARGS, f"EngineArgs.{name}")
        for name in ("dtype", "enforce_eager", "block_size", "kv_cache_memory_bytes", "distributed_executor_backend")
    ),
    Seam(CPU, "vllm._custom_ops", "_supports_onednn"),
    Seam(CPU, "vllm.model_executor.layers.utils", "check_cpu_sgl_kernel"),
    Seam(CPU, "vllm.utils.system_utils", "get_mp_context", ()),
    Seam(CPU, "vllm.v1.executor.uniproc_executor", "UniProcExecutor"),
    Seam(
        CPU,
        "vllm.distributed.utils",
        "stateless_init_torch_distributed_process_group",
        ("host", "port", "rank", "world_size", "backend"),
    ),
    Seam("openrlhf/cli/train_ppo_ray.py", "openrlhf.cli.train_ppo_ray", "train", ("args",)),
    Seam("openrlhf/launch/flags.py", "openrlhf.utils.config", "hierarchize", ("args",)),
    Seam(
        "openrlhf/launch/prompt_data.py",
        "openrlhf.datasets.utils",
        "blending_datasets",
        ("datasets", "probabilities", "strategy", "seed", "max_count", "stopping_strategy", "dataset_split"),
    ),
    Seam(
        "openrlhf/launch/prompt_data.py",
        "openrlhf.datasets.prompts_dataset",
        "preprocess_data",
        ("data", "input_template", "input_key", "label_key", "apply_chat_template"),
    ),
    Seam("openrlhf/launch/cluster.py", "ray._private.ray_constants", "ENABLE_RAY_CLUSTER"),
    Seam("openrlhf/trainer/ray/vllm_engine.py", "openrlhf.trainer.ray.vllm_engine", "batch_vllm_engine_call"),
    Seam("openrlhf/trainer/ray/vllm_engine.py", "openrlhf.trainer.ray.vllm_engine", "create_vllm_engines"),
    Seam(
        ENGINE,
        "openrlhf.trainer.ray.vllm_engine",
        "RolloutRayActor.__init__",
        ("self", "args", "bundle_indices", "agent_func_path", "remote_rm_url", "mm_pad_token_ids", "kwargs"),
    ),
    Seam(ENGINE, "openrlhf.trainer.ray.vllm_engine", "RolloutRayActor", sets=("executor", "llm")),
    Seam(
        ENGINE,
        "openrlhf.trainer.ray.vllm_engine",
        "RolloutRayActor.generate_responses",
        ("self", "prompt", "label", "sampling_params", "max_length", "hf_tokenizer", "num_samples", "images"),
    ),
    Seam(ENGINE, "openrlhf.utils.agent", "SingleTurnAgentExecutor", sets=("reward_func",)),
    Seam(ENGINE, "vllm.v1.engine.async_llm", "AsyncLLM.check_health", ("self",)),
    # What tests/trainer/test_weight_transfer.py does not run: NCCL, and the worker around the engine.
    Seam(WRAP, f"{WEIGHTS}.base", "WeightTransferEngine.reset_weight_update_target", ("self",)),
    Seam(WRAP, "vllm.v1.worker.gpu_worker", "Worker", sets=("weight_transfer_engine", "_weight_update_active")),
    Seam(SENDER, f"{WEIGHTS}.nccl_common", "trainer_init", ("init_info", "rank")),
    Seam(SENDER, "vllm.distributed.device_communicators.pynccl", "PyNcclCommunicator.destroy", ("self",)),
    Seam(
        SENDER,
        f"{WEIGHTS}.packed_tensor",
        "packed_nccl_broadcast_producer",
        ("iterator", "group", "src", "post_iter_func", "buffer_size_bytes", "num_buffers"),
    ),
]


def _seams(relied_on_by: str, module: str, names: dict[str, tuple[str, ...] | None]) -> list[Seam]:
    """Names of one module with their first parameters; None where only the name counts."""
    return [Seam(f"openrlhf/trainer/{relied_on_by}.py", module, name, wanted) for name, wanted in names.items()]


def _sets(relied_on_by: str, module: str, classes: dict[str, tuple[str, ...]]) -> list[Seam]:
    """Classes of one module with attributes that they set on themselves."""
    return [Seam(f"openrlhf/trainer/{relied_on_by}.py", module, name, sets=sets) for name, sets in classes.items()]


TRAINER, GROUPS = "openrlhf.trainer.ppo_trainer", ("actor", "critic", "reward", "initial")
ASYNC_TRAINER, MAKER = "openrlhf.trainer.ppo_trainer_async", "openrlhf.trainer.ppo_utils.experience_maker"
ASYNC_LLM, OUTPUTS = "vllm.v1.engine.async_llm", "vllm.v1.engine.output_processor"
# What the pool pipeline calls, overrides or reads besides.
SEAMS += [
    *_seams(
        "ppo_trainer_async",
        ASYNC_TRAINER,
        {
            "PPOTrainerAsync.__init__": (
                "self",
                "pretrain",
                "strategy",
                *(f"{name}_model_group" for name in ("actor", "critic", "reward", "reference")),
                "vllm_engines",
                "generate_kwargs",
            ),
            "PPOTrainerAsync.fit": ("self",),
            "PPOTrainerAsync.get_max_steps": ("self",),
        },
    ),
    *_seams(
        "fully_async/training_actor",
        TRAINER,
        {
            "BasePPOTrainer.__init__": (
                "self",
                "strategy",
                *(f"{name}_model_group" for name in ("actor", "critic", "reward", "reference")),
                "vllm_engines",
                "tokenizer",
            ),
            "BasePPOTrainer.train_step": ("self", "rollout_samples", "global_step"),
            "BasePPOTrainer.ppo_train": ("self", "global_steps"),
            "BasePPOTrainer.broadcast_to_vllm": ("self",),
            "BasePPOTrainer.save_logs_and_checkpoints": ("self", "global_step", "logs_dict", "client_states"),
            "BasePPOTrainer.save_best_checkpoint": ("self", "eval_metrics", "global_step", "client_states"),
            "BasePPOTrainer.init_checkpoint_states": ("self",),
            "BasePPOTrainer.restore_best_checkpoint_state": ("self", "checkpoint_states"),
            "BasePPOTrainer._detect_eval_metric_key": ("self", "eval_metrics"),
            "compute_eval_metrics": ("eval_dataloader", "samples_list", "n_samples_per_prompt"),
        },
    ),
    Seam(
        "openrlhf/trainer/fully_async/training_actor.py",
        TRAINER,
        "BasePPOTrainer",
        sets=("experience_maker", "kl_ctl", "args", "best_eval_metric_value", "wandb_logger", "tensorboard_logger"),
    ),
    *_seams("fully_async/prompts", TRAINER, {"prepare_datasets": ("strategy", "tokenizer")}),
    *_seams(
        "fully_async/training_actor",
        "openrlhf.utils.utils",
        {"get_tokenizer": ("pretrain", "model", "padding_side", "strategy", "use_fast")},
    ),
    *_seams(
        "fully_async/training_actor",
        "openrlhf.utils.logging_utils",
        {
            f"{backend}Logger.{name}": wanted
            for backend in ("Wandb", "Tensorboard")
            for name, wanted in {"log_eval": ("self", "global_step", "logs_dict"), "close": ("self",)}.items()
        },
    ),
    *_seams(
        "fully_async/training_actor",
        "openrlhf.trainer.ppo_utils.samples_generator",
        {
            "SamplesGenerator.__init__": (
                "self",
                "strategy",
                "prompts_dataloader",
                "eval_dataloader",
                "tokenizer",
                "vllm_engines",
            ),
            "SamplesGenerator.generate_eval_samples": ("self", "generate_kwargs"),
        },
    ),
    *_seams(
        "fully_async/batch",
        "openrlhf.trainer.ppo_utils.samples_generator",
        {"SamplesGenerator._process_response_into_experience": ("self", "response", "generate_kwargs")},
    ),
    *_seams(
        "fully_async/batch",
        MAKER,
        {
            "RemoteExperienceMaker.__init__": (
                "self",
                *(f"{name}_model_group" for name in GROUPS),
                "kl_controller",
                "strategy",
                "tokenizer",
            ),
            "RemoteExperienceMaker.make_experience_batch": ("self", "rollout_samples"),
            "RemoteExperienceMaker.split_rollout_samples": ("self", "rollout_samples"),  # it numbers `index`
        },
    ),
    *_seams(
        "fully_async/batch",
        "openrlhf.trainer.ppo_utils.experience",
        {
            f"Experience.{name}": None
            for name in ("action_log_probs", "rollout_log_probs", "action_mask", "advantages", "index")
        },
    ),
    *_seams(
        "ray/policy_side",
        "openrlhf.trainer.ray.ppo_actor",
        {"ActorPPOTrainer.training_step": None, "PolicyModelActor.get_checkpoint_states": ("self",)},
    ),
    *_sets(
        "ray/policy_side",
        "openrlhf.trainer.ray.ppo_actor",
        {"ActorPPOTrainer": ("actor", "actor_optim", "actor_loss_fn"), "PolicyModelActor": ("trainer",)},
    ),
    *_sets(
        "ray/policy_side",
        "openrlhf.trainer.ray.launcher",
        {"BaseModelActor": ("strategy",), "RayActorGroup": ("_actor_handlers",)},
    ),
    *_seams("ray/policy_side", "ray.actor", {"__ray_call__": ("self", "fn", "args", "kwargs")}),
    *_seams(
        "losses/surrogate",
        "openrlhf.models.loss",
        {
            "aggregate_loss": (
                "loss",
                "loss_mask",
                "token_level_loss",
                "dp_size",
                "batch_num_tokens",
                "global_batch_size",
            ),
            "PolicyLoss.forward": (
                "self",
                "log_probs",
                "old_log_probs",
                "advantages",
                "action_mask",
                "rollout_log_probs",
                "dp_size",
                "batch_num_tokens",
                "global_batch_size",
            ),
        },
    ),
    *_seams(
        "ray/versioned_rollout",
        "openrlhf.utils.agent",
        {
            "AgentExecutorBase.execute": (
                "self",
                "prompt",
                "label",
                "sampling_params",
                "max_length",
                "hf_tokenizer",
                "llm_engine",
                "images",
            )
        },
    ),
    *_sets("ray/versioned_rollout", "openrlhf.trainer.ray.vllm_engine", {"RolloutRayActor": ("_mm_pad_token_ids",)}),
    *_seams(
        "ray/versioned_rollout", "openrlhf.utils.vlm_utils", {"dedup_media_tokens": ("token_ids", "pad_token_ids")}
    ),
    *_seams(
        "ray/versioned_rollout",
        ASYNC_LLM,
        {
            "AsyncLLM.generate": ("self", "prompt", "sampling_params", "request_id"),
            "AsyncLLM.pause_generation": ("self", "mode", "clear_cache"),
            "AsyncLLM.resume_generation": ("self",),
            "AsyncLLM.init_weight_transfer_engine": ("self", "request"),
            "AsyncLLM.start_weight_update": ("self",),
            "AsyncLLM.update_weights": ("self", "request"),
            "AsyncLLM.finish_weight_update": ("self", "weight_version"),
            "AsyncLLM.update_weight_version": ("self", "new_version"),
            "AsyncLLM.get_weight_version": ("self",),
            "AsyncLLM.errored": ("self",),
            "AsyncLLM.dead_error": ("self",),
        },
    ),
    *_sets("ray/versioned_rollout", ASYNC_LLM, {"AsyncLLM": ("output_processor",)}),
    *_sets(
        "ray/versioned_rollout",
        OUTPUTS,
        {
            "OutputProcessor": ("request_states", "external_req_ids"),
            "RequestState": ("detokenizer", "logprobs_processor"),
        },
    ),
    *_seams(
        "ray/versioned_rollout", "vllm.v1.engine.detokenizer", {"IncrementalDetokenizer.output_token_ids": ("self",)}
    ),
    *_seams("ray/versioned_rollout", "vllm.v1.engine.logprobs", {"LogprobsProcessor.logprobs": None}),
    *_seams("ray/versioned_rollout", "vllm.config.weight_transfer", {"WeightTransferConfig.backend": None}),
    *_seams(
        "ray/versioned_rollout",
        f"{WEIGHTS}.base",
        {"WeightTransferInitRequest.init_info": None, "WeightTransferUpdateRequest.update_info": None},
    ),
    *_seams(
        "ray/versioned_rollout",
        ENGINE_ARGS,
        {f"EngineArgs.{name}": None for name in ("weight_transfer_config", "logprobs_mode", "max_logprobs")},
    ),
    *_seams(
        "ray/versioned_rollout",
        "vllm.sampling_params",
        {
            "RequestOutputKind.FINAL_ONLY": None,
            **{
                f"SamplingParams.{name}": None
                for name in ("logprobs", "prompt_logprobs", "output_kind", "detokenize", "max_tokens")
            },
        },
    ),
    *_seams(
        "ray/versioned_rollout",
        "vllm.inputs.llm",
        {"TokensPrompt.prompt_token_ids": None, "_PromptOptions.cache_salt": None},
    ),
    *_seams(
        "fully_async/trajectory_recorder",
        "vllm.outputs",
        {
            "CompletionOutput.token_ids": None,
            "CompletionOutput.logprobs": None,
            "CompletionOutput.weight_versions": None,
            **{f"WeightVersionSpan.{name}": None for name in ("version", "start", "end")},
            "RequestOutput.__init__": ("self", "request_id", "prompt", "prompt_token_ids", "prompt_logprobs"),
        },
    ),
    *_seams(
        "tree/branching",
        "openrlhf.utils.agent",
        {
            "MultiTurnAgentExecutor.__init__": ("self", "agent_instance_cls"),
            "AgentInstanceBase.reset": ("self", "states"),
            "AgentInstanceBase.step": ("self", "state_dict"),
        },
    ),
    *_sets("tree/branching", "openrlhf.utils.agent", {"MultiTurnAgentExecutor": ("agent_instance_cls",)}),
    *_seams(
        "tree/lm_predictor",
        "openrlhf.models.model",
        {"get_llm_for_sequence_regression": ("model_name_or_path", "model_type", "param_dtype")},
    ),
    *_seams("ray/versioned_rollout", "vllm", {"SamplingParams": None}),
    *_seams("ray/versioned_rollout", "vllm.inputs", {"TokensPrompt": None}),
    *_seams("ray/weight_transfer", WEIGHTS, {"WeightTransferEngineFactory": None}),
    *_seams(
        "ray/weight_transfer", f"{WEIGHTS}.base", {"WeightTransferInitInfo": None, "WeightTransferUpdateInfo": None}
    ),
    *_seams(
        "ray/weight_sender",
        f"{WEIGHTS}.nccl_engine",
        {"NCCLTrainerInitInfo": None, "NCCLWeightTransferInitInfo": None},
    ),
    *_seams("ray/weight_source", "deepspeed", {"zero": None, "module_inject": None}),
    *_seams("ray/weight_source", "deepspeed.runtime.zero.partition_parameters", {"GatheredParameters": None}),
    *_seams("ray/weight_source", "deepspeed.module_inject.layers", {"GatherReplacedLayerParams": None}),
    *_seams("ray/vllm_engine", "ray.actor", {"ActorClass.options": None}),
    Seam("pace/actor.py", "ray.runtime_context", "RuntimeContext.was_current_actor_reconstructed", ("self",)),
]
