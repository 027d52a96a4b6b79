#!/usr/bin/env bash
# Asynchronous RL of a small Qwen3 on arithmetic, on a CPU: Ray, 2 ZeRO-3 ranks, one vLLM engine, PACE's pool between.
# Further arguments go to train_ppo_ray, e.g. `quickstart_cpu.sh --train.num_episodes 2`.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
export RAY_ADDRESS=${RAY_ADDRESS:-local} # a cluster of its own, whatever else runs on this machine

MODEL_ARGS=(
    --actor.model_name_or_path "$MODEL"
    --actor.num_nodes 1
    --actor.num_gpus_per_node 2 # logical: two gloo ranks
    --ds.zero_stage 3
    --ckpt.output_dir "$RUN_DIR/model"
    --ckpt.path "$RUN_DIR/checkpoints"
    --ckpt.save_steps 20
    --logger.tensorboard_dir "$RUN_DIR/tensorboard"
)

ROLLOUT_ARGS=(
    --data.prompt_dataset "$DATA/train.jsonl"
    --data.input_key prompt
    --data.label_key label
    --data.apply_chat_template
    --data.max_len 128
    --data.max_samples 640
    --rollout.batch_size 16
    --rollout.n_samples_per_prompt 16
    --rollout.micro_batch_size 32
    --rollout.max_new_tokens 32
    --reward.remote_url "$ROOT/examples/python/reward_func_math.py"
)

TRAIN_ARGS=(
    --train.async_enable
    --train.batch_size 256
    --train.micro_batch_size 32
    --algo.advantage.estimator group_norm
    --algo.kl.init_coef 0
    --actor.adam.lr 3e-4
    --actor.lr_scheduler constant_with_warmup
    --vllm.num_engines 1
    --vllm.tensor_parallel_size 1
)

PACE_ARGS=(
    --pace.enable
    --pace.admission areal # rollouts outrun training here: hold them back instead of rejecting what is stale
    --pace.admission_eta 1
    --pace.log_dir "$RUN_DIR" # pace.jsonl: every step, every decision
)

set -x
exec python -m openrlhf.cli.train_ppo_ray \
    "${MODEL_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${TRAIN_ARGS[@]}" "${PACE_ARGS[@]}" "$@"
