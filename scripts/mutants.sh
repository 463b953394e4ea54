#!/usr/bin/env bash
# Mutation run of the catalog (rows, leases, lifecycle): one shard of its mutants against the catalog's own tests.
#
#   scripts/mutants.sh          shard 0 of 36 (about 60 mutants)
#   scripts/mutants.sh 7/36     shard 7 of 36; every 36th mutant, so that a shard is a fair sample of all files
#
# Prints the counts, the share caught (a mutant that hangs the tests counts as caught) and the mutants missed; exits 1 below 85 %.
# The catalog needs neither arrow nor libtorch: it is built alone, from copies of its sources, in target/mutants. Whole lists are
# left in target/mutants/shard-K-of-N/mutants.out. docs/mutation.md holds the latest outcome.
#
# Needs: cargo-nextest; cargo-mutants is installed into target/mutants when this version of it is missing.
set -euo pipefail

MUTANTS=27.1.0
FLOOR=85

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
home="$root/target/mutants"
crate="$home/work/transferqueue"
shard="${1:-0/36}"

fail() {
  printf 'mutants.sh: %s\n' "$@" >&2
  exit 1
}

[[ "$shard" =~ ^[0-9]+/[1-9][0-9]*$ && ${shard%/*} -lt ${shard#*/} ]] \
  || fail "unknown shard '$shard'; expected K/N with K below N, for example 0/36"
out="$home/shard-${shard%/*}-of-${shard#*/}"

PATH="$home/bin:$PATH"
[ "$(cargo mutants --version 2>/dev/null)" = "cargo-mutants $MUTANTS" ] \
  || cargo install --locked --root "$home" --version "$MUTANTS" cargo-mutants

# The workspace with one crate in it, the crate with one module in it and the packages that this module uses. Copied, since mutants
# are made in place.
rm -rf "$crate" "$out"
mkdir -p "$crate/src" "$crate/tests" "$home/work/.config" "$out"
cp "$root/Cargo.lock" "$root/rust-toolchain.toml" "$home/work"
sed 's/^members = .*/members = ["transferqueue"]/; /^\[profile.*torch-sys\]/,+1d' "$root/Cargo.toml" >"$home/work/Cargo.toml"
cd "$root/transferqueue"
awk '/^\[/ { listed = /dependencies/ } !listed || !/^[a-z]/ || /^(proptest|roaring|rustc-hash|serde|serde_json|thiserror)[. ]/' \
  Cargo.toml >"$crate/Cargo.toml"
{
  echo '//! The catalog alone.'
  grep -E '^pub (mod|use) (catalog|ids|schema)\b' src/lib.rs
} >"$crate/src/lib.rs"
cp -r src/catalog src/ids.rs src/schema.rs "$crate/src"
cp -r tests/catalog_* "$crate/tests"
# The first test that fails ends the rest.
printf '[profile.default]\nfail-fast = { max-fail = 1, terminate = "immediate" }\n' >"$home/work/.config/nextest.toml"

export CARGO_TARGET_DIR="$home/target" CARGO_INCREMENTAL=1 CARGO_PROFILE_DEV_DEBUG=false CARGO_PROFILE_DEV_OPT_LEVEL=0
export TQ_SIM_SCHEDULES=12 PROPTEST_CASES=96 PROPTEST_RNG_SEED=1 PROPTEST_MAX_SHRINK_TIME=1
# A mutant may loop for ever, or allocate for ever.
ulimit -v 6000000
status=0
cargo mutants --dir "$crate" --in-place --test-tool nextest --cap-lints true --timeout 90 --output "$out" \
  --shard "$shard" --sharding round-robin --file 'transferqueue/src/catalog/**' || status=$?
# 2: some were missed; 3: some timed out. All else is no outcome.
case $status in
  0 | 2 | 3) ;;
  *) fail "cargo mutants exited with $status; its logs are in $out/mutants.out" ;;
esac

count() { wc -l <"$out/mutants.out/$1.txt"; }
caught=$(count caught) missed=$(count missed) unviable=$(count unviable) timeout=$(count timeout)
viable=$((caught + timeout + missed))
[ "$viable" -gt 0 ] || fail "shard $shard holds no mutant that builds"
echo "shard $shard: $caught caught, $missed missed, $unviable unviable, $timeout timed out;" \
  "$(awk "BEGIN { printf \"%.1f\", 100 * ($caught + $timeout) / $viable }") % of $viable caught"
sed 's/^/missed: /' "$out/mutants.out/missed.txt"
[ $((100 * (caught + timeout))) -ge $((FLOOR * viable)) ] || fail "fewer than $FLOOR % of the mutants were caught"
