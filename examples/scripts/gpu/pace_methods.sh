# DAPO_ARGS: what both recipes of PACE train with. METHOD_ARGS: PACE, or one of what it is compared with.
DAPO_ARGS=(
    --rollout.batch_size 32           # ours
    --rollout.n_samples_per_prompt 16 # DAPO
    --rollout.temperature 1.0         # DAPO
    --algo.dynamic_filtering_enable   # DAPO
    --algo.dynamic_filtering_range 0.01 0.99
    --train.batch_size 512                # ours: one update a batch
    --algo.advantage.estimator group_norm # DAPO
    --actor.eps_clip_low_high 0.2 0.28    # DAPO
    --actor.loss_agg_mode token-mean      # DAPO
    --algo.kl.init_coef 0                 # DAPO
    --actor.adam.lr 1e-6                  # DAPO
    --actor.adam.weight_decay 0.1         # DAPO
    --actor.lr_scheduler constant_with_warmup
    --train.num_episodes "${EPISODES:-1}"
)
ASYNC=(--train.async_enable --algo.advantage.is_correction_level token)
KEEP_ALL=(--pace.max_reject_rate 0 --pace.rank raw) # nothing is ranked: without prefix scores at every sync
apart
case "$METHOD" in
    pace) METHOD_ARGS=("${ASYNC[@]}" --pace.enable --pace.rank effective --pace.gamma 4) ;; # paper: gamma 1, 2, 4
    pace_raw) METHOD_ARGS=("${ASYNC[@]}" --pace.enable --pace.rank raw) ;;
    generation) METHOD_ARGS=("${ASYNC[@]}" --pace.enable --pace.rank generation) ;;
    unfiltered) METHOD_ARGS=("${ASYNC[@]}" --pace.enable "${KEEP_ALL[@]}" --pace.k_max -1) ;;
    stale_k) METHOD_ARGS=("${ASYNC[@]}" --pace.enable "${KEEP_ALL[@]}" --pace.k_max "${STALE_K:-4}") ;;
    areal)
        METHOD_ARGS=(--train.async_enable --pace.enable "${KEEP_ALL[@]}" --pace.k_max -1 --pace.loss decoupled)
        METHOD_ARGS+=(--pace.admission areal --pace.admission_eta "${ETA:-4}")
        ;;
    m2po) METHOD_ARGS=(--train.async_enable --pace.enable "${KEEP_ALL[@]}" --pace.k_max -1 --pace.loss m2po) ;;
    async) METHOD_ARGS=("${ASYNC[@]}" --train.partial_rollout_enable) ;; # upstream's own queue
    sync) METHOD_ARGS=() && together ;;
    *) no_such METHOD "$METHOD" "pace pace_raw generation unfiltered stale_k areal m2po async sync" ;;
esac
