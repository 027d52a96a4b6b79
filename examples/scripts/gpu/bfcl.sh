#!/usr/bin/env bash
# TRACE: BFCL v4, multi-turn function calling.
# MODEL=Qwen/Qwen3-8B or Qwen/Qwen3-14B (16 GPUs and one for the predictor), or
# meta-llama/Llama-3.2-3B-Instruct (8 and one); METHOD=trace, or a baseline of trace_methods.sh; PACE=1.
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen3-8B} METHOD=${METHOD:-trace} PACE_RANK=raw # drift can't be measured below temperature 1
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
source "$(dirname "${BASH_SOURCE[0]}")/trace_methods.sh"
export BFCL_MAX_TURNS=${BFCL_MAX_TURNS:-40}                 # paper
export BFCL_MAX_OUTPUT_CHARS=${BFCL_MAX_OUTPUT_CHARS:-8000} # ours: of one result, for that length

ROLLOUT_ARGS=(
    --train.agent_func_path "$ROOT/examples/python/agent_func_bfcl.py"
    --rollout.batch_size 64          # ours: trees an update
    --rollout.n_samples_per_prompt 8 # ours: the budget is that of 64 x 8 flat rollouts, M = 256
    --rollout.temperature 0.9        # paper
    --data.max_len 16384             # ours: one row's logits must fit beside the 14B model
)

TRAIN_ARGS=(
    --train.batch_size 512
    --train.max_tokens_per_gpu 16384
    --rollout.max_tokens_per_gpu 32768
    --trace.predictor_lr 3e-5             # paper
    --trace.credit tree_grpo              # paper
    --algo.kl.init_coef 0.001             # ours
    --algo.kl.use_loss
    --algo.kl.estimator k3
    --train.colocate_actor_ref
    --ref.num_nodes $TRAIN_NODES
    --ref.num_gpus_per_node $TRAIN_GPUS
    --algo.advantage.estimator group_norm # --trace.credit takes its place
    --actor.eps_clip_low_high 0.2 0.28    # ours
    --actor.adam.lr 1e-6                  # ours
    --actor.lr_scheduler constant_with_warmup
    --train.num_episodes "${EPISODES:-3}"
)
set -x
exec python -m openrlhf.cli.train_ppo_ray \
    "${MODEL_ARGS[@]}" "${PLACE_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${TRAIN_ARGS[@]}" "${METHOD_ARGS[@]}" "$@"
