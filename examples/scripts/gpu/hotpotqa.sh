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

TASK_ARGS=(
    --train.agent_func_path "$ROOT/examples/python/agent_func_search.py"
    --rollout.batch_size 256  # trees an update, M = 1024 (paper)
    --rollout.temperature 1.0 # paper
    --data.max_len 8192       # paper: 2048 for the prompt, 6144 for the response
    --train.batch_size 2048
    --trace.predictor_lr 3e-5 # paper
    --trace.credit tree_rpo   # paper
    --algo.kl.init_coef 0     # ours
)

set -x
exec python -m openrlhf.cli.train_ppo_ray \
    "${MODEL_ARGS[@]}" "${PLACE_ARGS[@]}" "${TASK_ARGS[@]}" "${TREE_ARGS[@]}" "${METHOD_ARGS[@]}" "$@"
