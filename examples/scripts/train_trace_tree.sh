#!/usr/bin/env bash
# Rollout trees with TRACE on the multi-turn calculator task: a predictor of success says which prompts and which turns
# are worth more rollouts. Synchronous as it stands; with `--pace.enable` the trees go through PACE's pool. docs/trace.md.
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
    --data.max_samples "${MAX_SAMPLES:-640}"
    --rollout.batch_size 16          # trees per update
    --rollout.n_samples_per_prompt 8 # of the flat batch that costs as much
    --rollout.micro_batch_size 16
    --train.agent_func_path "$ROOT/examples/python/agent_func_calculator.py"
)

TRAIN_ARGS=(
    --train.async_enable
    --train.batch_size 128
    --train.micro_batch_size 16
    --algo.advantage.estimator group_norm
    --algo.kl.init_coef 0
    --actor.adam.lr 3e-4
    --vllm.num_engines 1
    --vllm.enable_prefix_caching
)

TRACE_ARGS=(
    --trace.enable
    --trace.allocation trace # or random, root_only, prefix_only, pcl, flat
    --trace.continuations 2  # per bare rollout; each costs half a rollout
    --trace.credit tree_rpo  # or tree_grpo, grpo
    --trace.predictor_lr 1e-4
    --pace.log_dir "$RUN_DIR" # pace.jsonl: every step, every tree
)

set -x
exec python -m openrlhf.cli.train_ppo_ray \
    "${MODEL_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${TRAIN_ARGS[@]}" "${TRACE_ARGS[@]}" "$@"
