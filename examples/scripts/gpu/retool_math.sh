#!/usr/bin/env bash
# PACE, several turns: mathematics with a sandboxed Python tool, in ReTool's manner. MODEL=Qwen/Qwen3-4B (8 GPUs;
# paper); METHOD=pace, or a baseline of pace_methods.sh.
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen3-4B} METHOD=${METHOD:-pace}
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
source "$(dirname "${BASH_SOURCE[0]}")/pace_methods.sh"
export MATH_MAX_TURNS=${MATH_MAX_TURNS:-8} # ours

ROLLOUT_ARGS=(
    --train.agent_func_path "$ROOT/examples/python/agent_func_math.py"
    --rollout.batch_size 32           # ours
    --rollout.n_samples_per_prompt 16 # ours
    --rollout.temperature 1.0         # ours
    --data.max_len 16384              # ours: the whole episode
    --algo.dynamic_filtering_enable   # DAPO
    --algo.dynamic_filtering_range 0.01 0.99
)

TRAIN_ARGS=(
    --train.batch_size 512 # one update a batch
    --train.max_tokens_per_gpu 16384
    --rollout.max_tokens_per_gpu 32768
    --algo.advantage.estimator group_norm # DAPO
    --actor.eps_clip_low_high 0.2 0.28    # DAPO
    --algo.kl.init_coef 0                 # DAPO
    --actor.adam.lr 1e-6                  # ours
    --actor.adam.weight_decay 0.1         # ours
    --actor.lr_scheduler constant_with_warmup
    --train.num_episodes "${EPISODES:-1}"
)

set -x
exec python -m openrlhf.cli.train_ppo_ray \
    "${MODEL_ARGS[@]}" "${PLACE_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${TRAIN_ARGS[@]}" "${METHOD_ARGS[@]}" "$@"
