#!/usr/bin/env bash
# A reward model from pairs of right and wrong answers, two ranks.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

MODEL_ARGS=(
    --model.model_name_or_path "$MODEL"
    --ds.zero_stage 2
    --ckpt.output_dir "$RUN_DIR/model"
    --ckpt.path "$RUN_DIR/checkpoints"
)

DATA_ARGS=(
    --data.dataset "$DATA/pairs_train.jsonl"
    --data.chosen_key chosen
    --data.rejected_key rejected
    --data.apply_chat_template
    --data.max_len 256
    --data.max_samples "${MAX_SAMPLES:-512}"
)

TRAIN_ARGS=(
    --train.batch_size 64
    --train.micro_batch_size 16
    --train.max_epochs 1
    --adam.lr 1e-4
)

set -x
exec torchrun --standalone --nproc_per_node "${NPROC:-2}" --module openrlhf.cli.train_rm \
    "${MODEL_ARGS[@]}" "${DATA_ARGS[@]}" "${TRAIN_ARGS[@]}" "$@"
