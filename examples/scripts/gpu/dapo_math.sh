#!/usr/bin/env bash
# PACE, single turn: DAPO on mathematics. MODEL=Qwen/Qwen3-8B (16 GPUs; paper), Qwen/Qwen3-4B (8) or
# Qwen/Qwen3-30B-A3B-Base (32); METHOD=pace, or a baseline of pace_methods.sh.
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen3-8B} METHOD=${METHOD:-pace}
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
source "$(dirname "${BASH_SOURCE[0]}")/pace_methods.sh"

TASK_ARGS=(
    --data.apply_chat_template
    --reward.remote_url "$ROOT/examples/python/reward_func_math.py"
    --data.max_len 10240              # ours: 2048 for the prompt, 8192 for the response
    --rollout.max_new_tokens 8192     # ours: DAPO has 20480
    --reward.overlong_buffer_len 4096 # DAPO
    --reward.overlong_penalty_factor 1.0
    --train.max_tokens_per_gpu 20480
    --rollout.max_tokens_per_gpu 40960
)

set -x
exec python -m openrlhf.cli.train_ppo_ray \
    "${MODEL_ARGS[@]}" "${PLACE_ARGS[@]}" "${TASK_ARGS[@]}" "${DAPO_ARGS[@]}" "${METHOD_ARGS[@]}" "$@"
