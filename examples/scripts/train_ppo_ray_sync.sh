#!/usr/bin/env bash
# Synchronous RL on the small model: upstream's PPOTrainer, one step after the other.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

MODEL_ARGS=(
    --actor.model_name_or_path "$MODEL"
    --actor.num_gpus_per_node 2
    --ds.zero_stage 3
    --ckpt.output_dir "$RUN_DIR/model"
    --ckpt.path "$RUN_DIR/checkpoints"
)

ROLLOUT_ARGS=(
    --data.prompt_dataset "$DATA/train.jsonl"
    --data.input_key prompt
    --data.label_key label
    --data.apply_chat_template
    --data.max_len 128
    --data.max_samples "${MAX_SAMPLES:-160}"
    --rollout.batch_size 16
    --rollout.n_samples_per_prompt 8
    --rollout.micro_batch_size 32
    --rollout.max_new_tokens 32
    --reward.remote_url "$ROOT/examples/python/reward_func_math.py"
)

TRAIN_ARGS=(
    --train.batch_size 128
    --train.micro_batch_size 32
    --algo.advantage.estimator group_norm
    --algo.kl.init_coef 1e-3
    --algo.kl.use_loss
    --algo.kl.estimator k3
    --ref.num_gpus_per_node 2
    --train.colocate_actor_ref
    --actor.adam.lr 3e-4
    --vllm.num_engines 1
)

set -x
exec python -m openrlhf.cli.train_ppo_ray "${MODEL_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${TRAIN_ARGS[@]}" "$@"
