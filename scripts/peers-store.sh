#!/usr/bin/env bash
# Measures the store beside TransferQueue (SimpleStorage), Ray's object store, pyarrow Flight and Mooncake
# in turns and in one run.
#
#   scripts/peers-store.sh [argument of benches/peers/run.py …]    for instance --shapes simple --sides transferqueue,ray
#
# Installs them into target/peers/store-venv (once; torch alone is 3 GB to fetch), builds the program `peers`, and
# plays the rounds. Ends with 1 when a budget is missed that docs/known-gaps.md does not list, and when a peer could
# not be installed or measured: its name and the reason are said, and the others are measured all the same. Needs Linux
# on x86_64, Python 3.10 to 3.13, 12 GB of disk and 8 GB of memory.
#
# The peers are compared with and never depended upon: nothing of them is kept in the repository.
set -euo pipefail

TRANSFER_QUEUE=0.1.11
TORCH=2.11.0
TENSORDICT=0.15.3
RAY=2.60.0
PYARROW=26.0.1
MOONCAKE=0.3.13.post1
NEED_MB=12000

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
peers="$root/target/peers"
venv="$peers/store-venv"
target="${CARGO_TARGET_DIR:-$root/target}"

fail() {
  printf 'peers-store.sh: %s\n' "$@" >&2
  exit 1
}

command -v python3 >/dev/null || fail "python3 was not found; install it (Debian, Ubuntu: apt-get install python3 python3-venv)"
python3 -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' \
  || fail "$(python3 --version) was found; Python 3.10 to 3.13 is needed (ray==$RAY and torch==$TORCH have wheels for these)"
mkdir -p "$peers"
if [ ! -e "$venv/.installed-transferqueue" ]; then
  free_mb=$(df -Pm "$peers" | awk 'NR == 2 {print $4}')
  [ "$free_mb" -ge "$NEED_MB" ] || fail "$peers has $free_mb MB free, about $NEED_MB MB are needed"
fi
if [ ! -x "$venv/bin/pip" ]; then
  python3 -m venv "$venv" || fail "python3 could not make a virtual environment (Debian, Ubuntu: apt-get install python3-venv)"
fi

missing=()
# install NAME PACKAGE…: once; a peer that cannot be had is remembered with the reason, for the end.
install() {
  local name=$1 log="$peers/pip-$1.log"
  shift
  local stamp="$venv/.installed-$name"
  [ "$(cat "$stamp" 2>/dev/null)" != "$*" ] || return 0
  if "$venv/bin/pip" install --quiet "$@" >"$log" 2>&1; then
    echo "$*" >"$stamp"
  else
    missing+=(--missing "$name: pip could not install $*: $(grep -v '^\s*$' "$log" | tail -n 1) (all of it: $log)")
  fi
}

# All sides count with numpy; without it there is nothing to compare with.
install flight "pyarrow==$PYARROW" numpy
[ -e "$venv/.installed-flight" ] || fail "${missing[@]}"
install transferqueue "TransferQueue==$TRANSFER_QUEUE" "ray[default]==$RAY" "torch==$TORCH" "tensordict==$TENSORDICT"
install ray "ray[default]==$RAY"
install mooncake "mooncake-transfer-engine-non-cuda==$MOONCAKE"

cd "$root"
cargo build --quiet --release -p tq-benches --bin peers
export CUDA_VISIBLE_DEVICES=''
exec "$venv/bin/python" benches/peers/run.py --program "$target/release/peers" --out "$peers" "${missing[@]}" "$@"
