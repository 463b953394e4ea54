#!/usr/bin/env bash
# Real RDMA without a card: builds what speaks it, and tests that in the guest of scripts/rdma-guest.sh. Exit 77: something that this
# needs cannot be had here, and nothing was tested.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/rdma-guest.sh --prepare

built() { # The test programs of a build, by name.
  cargo test --no-run --message-format=json-render-diagnostics "$@" |
    sed -n 's/.*"name":"\([^"]*\)".*"executable":"\([^"]*\)".*/\1 \2/p'
}
declare -A program
while read -r name path; do program[$name]=$path; done < <(
  built -p tq-ucx -p tq-verbs -p transferqueue --features tq-ucx/rdma,tq-verbs/verbs,transferqueue/rdma \
    --lib --test verbs --test processes --test ucx --test ucx_descriptors
)
for name in transferqueue verbs processes ucx ucx_descriptors; do
  [ -n "${program[$name]:-}" ] || { echo "rdma: the build has no test program $name" >&2; exit 1; }
done

# A link that is cut is cut for everybody: those tests are alone.
scripts/rdma-guest.sh \
  "${program[verbs]} --test-threads=1" \
  "${program[processes]} over_rc --test-threads=1" \
  "${program[transferqueue]} over_rc --test-threads=2" \
  "${program[ucx]} over_rc --test-threads=1" \
  "${program[ucx_descriptors]}"
