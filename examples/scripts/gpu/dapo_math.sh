#!/usr/bin/env bash
# PACE, single turn: DAPO on mathematics. MODEL=Qwen/Qwen3-8B (16 GPUs; paper), Qwen/Qwen3-4B (8) or
# Qwen/Qwen3-30B-A3B-Base (32); METHOD=pace, or a baseline of pace_methods.sh.
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen3-8B} METHOD=${METHOD:-pace}
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
source "$(dirname "${BASH_SOURCE[0]}")/pace_methods.sh"

ROLLOUT_ARGS=(
    --data.apply_chat_template
    --reward.remote_url "$ROOT/examples/python/reward_func_math.py"
    --rollout.batch_size 32           # ours
    --rollout.n_samples_per_prompt 16 # DAPO
    --rollout.temperature 1.0         # DAPO
    --data.max_len 10240              # ours: 2048 for the prompt, 8192 for the response
    --rollout.max_new_tokens 8192     # ours: DAPO has 20480
    --reward.overlong_buffer_len 4096 # DAPO
    --reward.overlong_penalty_factor 1.0
    --algo.dynamic_filtering_enable # DAPO
    --algo.dynamic_filtering_range 0.01 0.99
)

TRAIN_ARGS=(
    --train.batch_size 512 # one update a batch
    --train.max_tokens_per_gpu 20480
    --rollout.max_tokens_per_gpu 40960
    --algo.advantage.estimator group_norm # DAPO
    --actor.eps_clip_low_high 0.2 0.28    # DAPO
    --actor.loss_agg_mode token-mean      # DAPO
    --algo.kl.init_coef 0                 # DAPO
    --actor.adam.lr 1e-6                  # DAPO
    --actor.adam.weight_decay 0.1         # DAPO
    --actor.lr_scheduler constant_with_warmup
    --train.num_episodes "${EPISODES:-1}"
)
set -x
exec python -m openrlhf.cli.train_ppo_ray \
    "${MODEL_ARGS[@]}" "${PLACE_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${TRAIN_ARGS[@]}" "${METHOD_ARGS[@]}" "$@"
