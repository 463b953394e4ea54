#!/usr/bin/env bash
# Mean of the first and last held-out reward over the demo's runs of one schedule.
#   scripts/demo-summary.sh on_policy
set -euo pipefail
cd "$(dirname "$0")/.."
schedule=${1:?schedule}
python3 - runs/quickstart-"$schedule"-*/metrics.jsonl <<'PY'
import json, sys
name = "val-core/digit_completion/reward/mean@1"
firsts, lasts = [], []
for path in sys.argv[1:]:
    steps = {}
    for line in open(path):
        row = json.loads(line)
        if name in row:
            steps[row["step"]] = row[name]
    first, last = steps[min(steps)], steps[max(steps)]
    firsts.append(first), lasts.append(last)
    print(f"{path}: {first:.3f} before, {last:.3f} after {max(steps)} steps, gain {last - first:+.3f}")
mean = lambda xs: sum(xs) / len(xs)
print(f"mean of {len(lasts)}: {mean(firsts):.3f} before, {mean(lasts):.3f} after, gain {mean(lasts) - mean(firsts):+.3f}")
PY
