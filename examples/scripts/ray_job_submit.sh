#!/usr/bin/env bash
# Submits a training script (or any command) as a Ray job, follows its log and returns its exit code.
#
# usage: ray_job_submit.sh COMMAND [ARG ...]        e.g. ray_job_submit.sh bash examples/scripts/train_ppo_ray_sync.sh
#
# RAY_API     the dashboard of a running cluster, e.g. http://127.0.0.1:8265; without it a head is started for this job
#             on the loopback address and stopped afterwards
# NUM_GPUS    GPUs of that head (logical ones where there is no device); default 4
# WORKING_DIR what the job sees as its current folder; default: this checkout
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
WORKING_DIR=${WORKING_DIR:-$ROOT}
[ $# -gt 0 ] || { sed -n '2,/^set /s/^# \{0,1\}//p' "$0" | head -n -1 >&2; exit 2; }

free_port() { python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

HEAD=
stop_head() {
    [ -n "$HEAD" ] || return 0
    kill -TERM "$HEAD" 2>/dev/null || true
    wait "$HEAD" 2>/dev/null || true
    HEAD=
    rm -rf "$HEAD_TMP"
}
trap stop_head EXIT

if [ -z "${RAY_API:-}" ]; then
    HEAD_TMP=$(mktemp -d "${RAY_TMPDIR:-/tmp}/orlhf-XXXXXX") # short: socket paths end at 107 characters
    DASHBOARD=$(free_port)
    RAY_API=http://127.0.0.1:$DASHBOARD
    HEAD_ARGS=(
        --head --block
        --node-ip-address=127.0.0.1
        --port="$(free_port)"
        --dashboard-port="$DASHBOARD"
        --dashboard-agent-listen-port="$(free_port)"
        --ray-client-server-port="$(free_port)" # another Ray on this machine has the default one
        --num-cpus="${NUM_CPUS:-8}"
        --num-gpus="${NUM_GPUS:-4}"
        --object-store-memory=$((512 << 20))
        --temp-dir="$HEAD_TMP"
        --disable-usage-stats
    )
    ray start "${HEAD_ARGS[@]}" >"$HEAD_TMP/head.log" 2>&1 &
    HEAD=$!
fi

JOB=orlhf-$(date +%Y%m%d-%H%M%S)-$$
stop_job() { ray job stop --address "$RAY_API" --no-wait "$JOB" >/dev/null 2>&1 || true; }
trap 'stop_job; exit 130' INT
trap 'stop_job; exit 143' TERM

# The job agent comes up after the dashboard: submitting earlier fails with "No available agent to submit job".
if ! python -m openrlhf.cli.preflight --ray-address "$RAY_API" --wait 120; then
    [ -z "$HEAD" ] || tail -n 20 "$HEAD_TMP/head.log" >&2
    exit 1
fi

set -x
if ray job submit --address "$RAY_API" --submission-id "$JOB" --working-dir "$WORKING_DIR" -- "$@"; then
    exit 0
fi
# `ray job submit` says 1 for every failure; the command's own code is in the job's record.
exit "$(python - "$RAY_API" "$JOB" <<'PYTHON'
import sys
from ray.job_submission import JobSubmissionClient

print(JobSubmissionClient(sys.argv[1]).get_job_info(sys.argv[2]).driver_exit_code or 1)
PYTHON
)"
