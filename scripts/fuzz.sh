#!/usr/bin/env bash
# Fuzzes the decoders of bytes from outside, one target after another; findings lie in fuzz/artifacts/TARGET.
#
#   scripts/fuzz.sh                   every target for FUZZ_SECONDS (600) each
#   scripts/fuzz.sh puts tickets      these
#   scripts/fuzz.sh --build           only builds them
#   scripts/fuzz.sh --replay          decodes fuzz/corpus once, under AddressSanitizer
#   scripts/fuzz.sh --keep            brings what new corpora cover beyond the committed ones into fuzz/corpus
#
# New inputs are kept in FUZZ_CORPUS (fuzz/work, not committed); FUZZ_JOBS (1) targets run at once.
# The toolchain is the repository's own: libFuzzer's coverage and AddressSanitizer are passed to it by hand.
set -euo pipefail
cd "$(dirname "$0")/.."

host=$(rustc -vV | sed -n 's/^host: //p')
target_dir=${FUZZ_TARGET_DIR:-${CARGO_TARGET_DIR:-target}/fuzz}
work=${FUZZ_CORPUS:-fuzz/work}
seconds=${FUZZ_SECONDS:-600}
all=(messages actions tickets puts gets answers neighbours log snapshot spills inspect arena)

export RUSTC_BOOTSTRAP=1
export RUSTFLAGS="--cfg fuzzing -Zsanitizer=address -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Cllvm-args=-sanitizer-coverage-stack-depth ${RUSTFLAGS:-}"
export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_leaks=0:allocator_may_return_null=0}"
cargo build --release --manifest-path fuzz/Cargo.toml --target "$host" --target-dir "$target_dir"
bin=$target_dir/$host/release

fuzz() {
  local target=$1
  mkdir -p "$work/$target" "fuzz/artifacts/$target"
  "$bin/$target" "$work/$target" "fuzz/corpus/$target" -artifact_prefix="fuzz/artifacts/$target/" \
    -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=512 -max_len=8192 \
    -print_final_stats=1 -verbosity=1 2>&1 | tee "$work/$target.log" | grep -vE '^#|NEW_FUNC|^INFO' || {
      echo "$target: a finding, see $work/$target.log and fuzz/artifacts/$target" >&2
      return 1
    }
}

case ${1:-} in
  --build) exit 0 ;;
  --replay)
    for target in "${all[@]}"; do
      log=$("$bin/$target" -runs=0 -rss_limit_mb=2048 -malloc_limit_mb=512 "fuzz/corpus/$target" 2>&1) || {
        echo "$log" >&2
        exit 1
      }
      echo "$target: $(find "fuzz/corpus/$target" -type f | wc -l) inputs, nothing found"
    done
    exit 0
    ;;
  --keep)
    for target in "${all[@]}"; do
      merged=$(mktemp -d)
      "$bin/$target" -merge=1 -max_len=2048 "$merged" "fuzz/corpus/$target" "$work/$target" > "$work/$target-merge.log" 2>&1
      find "$merged" -type f -size -4k -exec cp -t "fuzz/corpus/$target" {} +
      rm -r "$merged"
    done
    du -sh fuzz/corpus
    exit 0
    ;;
esac

targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=("${all[@]}")
failed=0
for target in "${targets[@]}"; do
  fuzz "$target" &
  while [ "$(jobs -rp | wc -l)" -ge "${FUZZ_JOBS:-1}" ]; do wait -n || failed=1; done
done
while [ -n "$(jobs -rp)" ]; do wait -n || failed=1; done
exit $failed
