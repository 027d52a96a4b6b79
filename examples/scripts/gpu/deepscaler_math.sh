#!/usr/bin/env bash
# TRACE: DeepScaleR's problems with a sandboxed Python tool.
# MODEL=Qwen/Qwen3-8B or Qwen/Qwen3-14B (16 GPUs and one for the predictor); METHOD=trace, or a baseline of
# trace_methods.sh; PACE=1.
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen3-8B} METHOD=${METHOD:-trace} PACE_RANK=raw # drift can't be measured below temperature 1
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
source "$(dirname "${BASH_SOURCE[0]}")/trace_methods.sh"
export MATH_MAX_TURNS=${MATH_MAX_TURNS:-5} # paper

TASK_ARGS=(
    --train.agent_func_path "$ROOT/examples/python/agent_func_math.py"
    --rollout.batch_size 128    # ours: trees an update, M = 512
    --rollout.temperature 0.6   # paper
    --rollout.top_p 0.95        # paper
    --data.max_len 16384        # paper: 2048 for the prompt, 14336 for the response
    --train.batch_size 1024
    --trace.predictor_lr 1.5e-5 # paper
    --trace.credit tree_rpo     # paper
    --algo.kl.init_coef 0       # ours
)

set -x
exec python -m openrlhf.cli.train_ppo_ray \
    "${MODEL_ARGS[@]}" "${PLACE_ARGS[@]}" "${TASK_ARGS[@]}" "${TREE_ARGS[@]}" "${METHOD_ARGS[@]}" "$@"
