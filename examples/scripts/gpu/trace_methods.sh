# TREE_ARGS: what all recipes of TRACE train with. METHOD_ARGS: TRACE, or one of what it is compared with, all at one
# budget; PACE=1 sends the trees through the pool.
TREE_ARGS=(
    --rollout.n_samples_per_prompt 8 # ours: with --rollout.batch_size the flat batch that costs as much
    --train.max_tokens_per_gpu 16384
    --rollout.max_tokens_per_gpu 32768
    --algo.advantage.estimator group_norm # --trace.credit takes its place
    --actor.eps_clip_low_high 0.2 0.28    # ours
    --actor.adam.lr 1e-6                  # ours
    --actor.lr_scheduler constant_with_warmup
    --train.num_episodes "${EPISODES:-3}"
)
apart
case "$METHOD" in
    trace | root_only | prefix_only | pcl) PREDICTOR_GPUS=1 ;;
    random | flat) PREDICTOR_GPUS=0 ;; # TreePO, GRPO: nothing to predict
    *) no_such METHOD "$METHOD" "trace random root_only prefix_only pcl flat" ;;
esac
METHOD_ARGS=(
    --train.async_enable
    --trace.enable
    --trace.allocation "$METHOD"
    --trace.continuations 2                                 # paper
    --trace.predictor_model "${PREDICTOR:-Qwen/Qwen3-0.6B}" # paper
    --trace.predictor_gpus $PREDICTOR_GPUS
    --trace.prefix_share 0.06 # paper
    --trace.num_actors 4
    --pace.log_dir "$RUN_DIR"
)
if [ "${PACE:-0}" = 1 ]; then METHOD_ARGS+=(--pace.enable --pace.rank "$PACE_RANK"); fi
