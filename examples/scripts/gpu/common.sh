# Shared by the recipes of this folder, which are planned for nodes of eight 80 GB GPUs and have not been run on them:
# MODEL gives the sizes, METHOD the method. "paper" marks settings of the papers, "ours" what they do not say.
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
: "${DATA:?set DATA to the folder with train.jsonl (columns prompt and label), see docs/recipes.md}"

no_such() { # what, value, choices
    echo "$1=$2 is not known here; choose one of: $3" >&2
    exit 2
}

# GPUs of the trainer, engines and their GPUs [ours].
case "${MODEL##*/}" in
    Llama-3.2-3B-Instruct | Qwen3-4B) NODES=1 TRAIN_NODES=1 TRAIN_GPUS=4 ENGINES=4 TP=1 ;;
    Qwen3-8B) NODES=2 TRAIN_NODES=1 TRAIN_GPUS=8 ENGINES=8 TP=1 ;;
    Qwen3-14B) NODES=2 TRAIN_NODES=1 TRAIN_GPUS=8 ENGINES=4 TP=2 ;;
    Qwen3-30B-A3B-Base) NODES=4 TRAIN_NODES=2 TRAIN_GPUS=8 ENGINES=8 TP=2 ;;
    *) no_such MODEL "$MODEL" "Llama-3.2-3B-Instruct Qwen3-4B Qwen3-8B Qwen3-14B Qwen3-30B-A3B-Base" ;;
esac
RUN_DIR=${RUN_DIR:-$ROOT/runs/$(basename "$0" .sh)-${MODEL##*/}-$METHOD}

# Trainer and engines on GPUs of their own; the synchronous baseline has all of them take turns on the same number.
apart() {
    PLACE_ARGS=(
        --actor.num_nodes $TRAIN_NODES
        --actor.num_gpus_per_node $TRAIN_GPUS
        --vllm.num_engines $ENGINES
    )
}
together() {
    PLACE_ARGS=(
        --train.colocate_all
        --actor.num_nodes $NODES
        --actor.num_gpus_per_node 8
        --vllm.num_engines $((NODES * 8 / TP))
        --vllm.gpu_memory_utilization 0.6
        --vllm.enable_sleep
        --ds.enable_sleep
    )
}

MODEL_ARGS=(
    --actor.model_name_or_path "$MODEL"
    --ds.zero_stage 3
    --ds.param_dtype bf16
    --ds.packing_samples
    --actor.gradient_checkpointing_enable
    --train.dynamic_batch_enable
    --vllm.tensor_parallel_size $TP
    --vllm.enable_prefix_caching
    --ckpt.path "$RUN_DIR/checkpoints"
    --ckpt.output_dir "$RUN_DIR/model"
    --ckpt.save_steps 20
    --ckpt.max_num 2
    --ckpt.load_enable # goes on where the folder's checkpoint stands; afresh in an empty one
    --data.prompt_dataset "$DATA/train.jsonl"
    --data.input_key prompt
    --data.label_key label
    --logger.tensorboard_dir "$RUN_DIR/tensorboard"
)
