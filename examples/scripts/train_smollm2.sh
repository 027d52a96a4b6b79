#!/usr/bin/env bash
# Real weights on a CPU: SmolLM2-135M learns reasoning-gym's sums with PACE, at least 10 updates, and a report at the end. Slow:
# it shows that nothing depends on the small model. MODEL may be set to another one, DATA to another folder with train.jsonl.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
MODEL=${MODEL:-$(cd "$ROOT" && python -c 'from examples.tiny.smollm2 import build; print(build())' | tail -n 1)}
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

MODEL_ARGS=(
    --actor.model_name_or_path "$MODEL"
    --actor.num_gpus_per_node 1
    --ds.zero_stage 3
    --ckpt.output_dir "$RUN_DIR/model"
    --ckpt.path "$RUN_DIR/checkpoints"
)

ROLLOUT_ARGS=(
    --data.prompt_dataset "$DATA/train.jsonl"
    --data.input_key prompt
    --data.label_key label
    --data.apply_chat_template
    --data.max_len 128
    --data.max_samples "${MAX_SAMPLES:-60}"
    --rollout.batch_size 4
    --rollout.n_samples_per_prompt 8
    --rollout.micro_batch_size 8
    --rollout.max_new_tokens 32
    --rollout.temperature 1.0
    --reward.remote_url "$ROOT/examples/python/reward_func_math.py"
)

TRAIN_ARGS=(
    --train.async_enable
    --train.batch_size 32
    --train.micro_batch_size 8
    --algo.advantage.estimator group_norm
    --algo.advantage.is_correction_level token
    --algo.kl.init_coef 0
    --actor.adam.lr 1e-5
    --actor.lr_scheduler constant_with_warmup
    --vllm.num_engines 1
    --vllm.enable_prefix_caching
)

PACE_ARGS=(
    --pace.enable
    --pace.admission areal # a CPU's cores are shared: no rollouts that would only be thrown away
    --pace.admission_eta 2
    --pace.log_dir "$RUN_DIR"
)

set -x
python -m openrlhf.cli.train_ppo_ray "${MODEL_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${TRAIN_ARGS[@]}" "${PACE_ARGS[@]}" "$@"
python -m pace.report "$RUN_DIR"
