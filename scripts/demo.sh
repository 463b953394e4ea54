#!/usr/bin/env bash
# The main job: digits data, then pipelines/quickstart.yaml under a schedule and a seed. Further arguments are overrides.
#   scripts/demo.sh on_policy 1 [override…]
set -euo pipefail
cd "$(dirname "$0")/.."
schedule=${1:?schedule: on_policy, one_step_off or fully_async}
seed=${2:?seed}
shift 2
run=target/debug/tq-run
[ -f data/digits/model/model.safetensors ] || "$run" data digits
"$run" pipelines/quickstart.yaml "schedule=$schedule" "trainer.seed=$seed" "trainer.experiment_name=quickstart-$schedule-$seed" --overwrite "$@"
