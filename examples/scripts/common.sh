# Shared by the scripts of this folder: where the checkout lies, and the small model and data that they train.
# MODEL and DATA may be set to others; what is missing is built (a minute on two cores, cached in .cache/tiny).
SCRIPTS=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$SCRIPTS/../.." && pwd)
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
RUN_DIR=${RUN_DIR:-$ROOT/runs/$(basename "$0" .sh)-$(date +%Y%m%d-%H%M%S)}
if [ -z "${MODEL:-}" ] || [ -z "${DATA:-}" ]; then
    TINY=$(cd "$ROOT" && python -c 'from examples.tiny.build import build; print(build().model.parent)' | tail -n 1)
    MODEL=${MODEL:-$TINY/model}
    DATA=${DATA:-$TINY}
fi
mkdir -p "$RUN_DIR"
