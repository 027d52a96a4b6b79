#!/usr/bin/env bash
# PACE, several turns: mathematics with a sandboxed Python tool, in ReTool's manner. MODEL=Qwen/Qwen3-4B (8 GPUs;
# paper); METHOD=pace, or a baseline of pace_methods.sh.
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen3-4B} METHOD=${METHOD:-pace}
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
source "$(dirname "${BASH_SOURCE[0]}")/pace_methods.sh"
export MATH_MAX_TURNS=${MATH_MAX_TURNS:-8} # ours

TASK_ARGS=(
    --train.agent_func_path "$ROOT/examples/python/agent_func_math.py"
    --data.max_len 16384 # ours: the whole episode
    --train.max_tokens_per_gpu 16384
    --rollout.max_tokens_per_gpu 32768
)

set -x
exec python -m openrlhf.cli.train_ppo_ray \
    "${MODEL_ARGS[@]}" "${PLACE_ARGS[@]}" "${TASK_ARGS[@]}" "${DAPO_ARGS[@]}" "${METHOD_ARGS[@]}" "$@"
