#!/usr/bin/env bash
# TRACE: multi-hop questions with a search tool; SEARCH_CORPUS is a folder with an index of E5.
# MODEL=Qwen/Qwen3-8B or Qwen/Qwen3-14B (16 GPUs and one for the predictor), or
# meta-llama/Llama-3.2-3B-Instruct (8 and one); METHOD=trace, or a baseline of trace_methods.sh; PACE=1.
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen3-8B} METHOD=${METHOD:-trace} PACE_RANK=effective
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
source "$(dirname "${BASH_SOURCE[0]}")/trace_methods.sh"
export SEARCH_MAX_TURNS=${SEARCH_MAX_TURNS:-5} # paper
: "${SEARCH_CORPUS:?set SEARCH_CORPUS to the corpus, see docs/agents.md}" && export SEARCH_CORPUS

ROLLOUT_ARGS=(
    --train.agent_func_path "$ROOT/examples/python/agent_func_search.py"
    --rollout.batch_size 256         # ours: trees an update
    --rollout.n_samples_per_prompt 8 # the budget is that of 256 x 8 flat rollouts: M = 1024 (paper)
    --rollout.temperature 1.0        # paper
    --data.max_len 8192              # paper: 2048 for the prompt, 6144 for the response
)

TRAIN_ARGS=(
    --train.batch_size 2048
    --train.max_tokens_per_gpu 16384
    --rollout.max_tokens_per_gpu 32768
    --trace.predictor_lr 3e-5             # paper
    --trace.credit tree_rpo               # paper
    --algo.kl.init_coef 0                 # ours
    --algo.advantage.estimator group_norm # --trace.credit takes its place
    --actor.eps_clip_low_high 0.2 0.28    # ours
    --actor.adam.lr 1e-6                  # ours
    --actor.lr_scheduler constant_with_warmup
    --train.num_episodes "${EPISODES:-3}"
)
set -x
exec python -m openrlhf.cli.train_ppo_ray \
    "${MODEL_ARGS[@]}" "${PLACE_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${TRAIN_ARGS[@]}" "${METHOD_ARGS[@]}" "$@"
