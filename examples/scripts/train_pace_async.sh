#!/usr/bin/env bash
# Asynchronous RL with PACE on the multi-turn calculator task: finished groups wait in a pool, which rejects what would
# be too stale when rollout outruns training. Every step and every decision is in $RUN_DIR/pace.jsonl; docs/pace.md.
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
    --data.prompt_dataset "$DATA/calculator_train.jsonl"
    --data.input_key prompt
    --data.label_key label
    --data.apply_chat_template
    --data.max_len 256
    --data.max_samples "${MAX_SAMPLES:-160}"
    --rollout.batch_size 16
    --rollout.n_samples_per_prompt 8
    --rollout.micro_batch_size 32
    --rollout.temperature 1.0 # as ranking by effective staleness needs it
    --train.agent_func_path "$ROOT/examples/python/agent_func_calculator.py"
)

TRAIN_ARGS=(
    --train.async_enable
    --train.batch_size 128
    --train.micro_batch_size 32
    --algo.advantage.estimator reinforce_baseline
    --algo.advantage.is_correction_level token
    --algo.kl.init_coef 0
    --actor.adam.lr 3e-4
    --vllm.num_engines 1
    --vllm.enable_prefix_caching
)

PACE_ARGS=(
    --pace.enable
    --pace.rank effective      # or raw, generation, waiting, random, oldest
    --pace.target_batches 1.25 # ready batches above which groups are rejected
    --pace.gamma 4
    --pace.k_max 8 # no trajectory older than this many updates
    --pace.log_dir "$RUN_DIR"
)

set -x
exec python -m openrlhf.cli.train_ppo_ray \
    "${MODEL_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${TRAIN_ARGS[@]}" "${PACE_ARGS[@]}" "$@"
