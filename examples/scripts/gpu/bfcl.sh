#!/usr/bin/env bash
# TRACE: BFCL v4, multi-turn function calling.
# MODEL=Qwen/Qwen3-8B or Qwen/Qwen3-14B (16 GPUs and one for the predictor); METHOD=trace, or a baseline of
# trace_methods.sh; PACE=1.
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen3-8B} METHOD=${METHOD:-trace} PACE_RANK=raw # drift can't be measured below temperature 1
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
source "$(dirname "${BASH_SOURCE[0]}")/trace_methods.sh"
export BFCL_MAX_TURNS=${BFCL_MAX_TURNS:-40}                 # paper
export BFCL_MAX_OUTPUT_CHARS=${BFCL_MAX_OUTPUT_CHARS:-8000} # ours: of one result, for that length

TASK_ARGS=(
    --train.agent_func_path "$ROOT/examples/python/agent_func_bfcl.py"
    --rollout.batch_size 64   # ours: trees an update, M = 256
    --rollout.temperature 0.9 # paper
    --data.max_len 16384      # ours: one row's logits must fit beside the 14B model
    --train.batch_size 512
    --trace.predictor_lr 3e-5 # paper
    --trace.credit tree_grpo  # paper
    --algo.kl.init_coef 0.001 # ours
    --algo.kl.use_loss
    --algo.kl.estimator k3
    --train.colocate_actor_ref
    --ref.num_nodes $TRAIN_NODES
    --ref.num_gpus_per_node $TRAIN_GPUS
)

set -x
exec python -m openrlhf.cli.train_ppo_ray \
    "${MODEL_ARGS[@]}" "${PLACE_ARGS[@]}" "${TASK_ARGS[@]}" "${TREE_ARGS[@]}" "${METHOD_ARGS[@]}" "$@"
