#!/usr/bin/env bash
# Provisions libtorch 2.11.0 (CPU) as `.libtorch` in the repository root, where `.cargo/config.toml` looks for it.
#
# PyPI's torch wheel is the source: its headers, libtorch_cpu.so, libc10.so and libgomp.so, plus the two small NVIDIA libraries that
# libtorch_cpu.so names as dependencies even when no GPU is used. The result is kept in ~/.cache/transferqueue/libtorch-2.11.0
# (or under $XDG_CACHE_HOME), `.libtorch` is a link to it, and running this again costs milliseconds.
#
# Building against it also needs a C++ compiler (torch-sys compiles thin C++ glue).
#
# Needs: x86_64 Linux, python3 (3.8 or later) with pip, PyPI (or a mirror that pip is configured for), about 2 GB of disk.
set -euo pipefail

TORCH=2.11.0
CUDART=13.0.96
CUPTI=13.0.85
NEED_MB=2000

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache="${XDG_CACHE_HOME:-$HOME/.cache}/transferqueue"
home="$cache/libtorch-$TORCH"
link="$root/.libtorch"

fail() {
  printf 'libtorch.sh: %s\n' "$@" >&2
  exit 1
}
note() { printf 'libtorch.sh: %s\n' "$*" >&2; }

# A folder is complete when its stamp, written last, carries this version; everything before that is thrown away and made again.
complete() { [ "$(cat "$1/build-version" 2>/dev/null)" = "$TORCH" ] && [ -s "$1/lib/libtorch_cpu.so" ] && [ -d "$1/include/ATen" ]; }

point() {
  if [ -e "$link" ] && [ ! -L "$link" ]; then
    fail "$link exists and is not a link; move it away and run this again"
  fi
  if [ "$(readlink "$link" 2>/dev/null)" != "$home" ]; then
    ln -sfn "$home" "$link"
  fi
}

if ! command -v c++ >/dev/null && ! command -v g++ >/dev/null && ! command -v clang++ >/dev/null; then
  note "no C++ compiler was found; the build will need one (Debian, Ubuntu: apt-get install g++)"
fi

if complete "$home"; then
  point
  note "libtorch $TORCH is ready at $home"
  exit 0
fi

[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] \
  || fail "found $(uname -s) on $(uname -m); only x86_64 Linux is supported (put a libtorch $TORCH at $link by hand to try another)"
command -v python3 >/dev/null || fail "python3 was not found; install it (Debian, Ubuntu: apt-get install python3 python3-pip)"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 8))' || fail "$(python3 --version) is too old; 3.8 or later is needed"
python3 -m pip --version >/dev/null 2>&1 || fail "python3 has no pip; install it (Debian, Ubuntu: apt-get install python3-pip)"

mkdir -p "$cache" || fail "cannot create $cache; set XDG_CACHE_HOME to a folder that can be written"
free_mb=$(df -Pm "$cache" | awk 'NR == 2 {print $4}')
[ "$free_mb" -ge "$NEED_MB" ] || fail "$cache has $free_mb MB free, about $NEED_MB MB are needed; free some or set XDG_CACHE_HOME to another disk"

# One provisioning at a time: a second caller waits and then finds the work done.
exec 9>"$cache/.libtorch.lock"
if command -v flock >/dev/null; then
  flock 9
  if complete "$home"; then
    point
    note "libtorch $TORCH is ready at $home"
    exit 0
  fi
fi

rm -rf "$cache"/.libtorch-partial.*
work=$(mktemp -d "$cache/.libtorch-partial.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

note "fetching torch $TORCH from PyPI (about 545 MB, once) into $cache"
mkdir "$work/wheels"
# The Python version only chooses among wheels that carry the same libraries, so that any python3 can fetch it.
if ! python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$work/wheels" --no-cache-dir \
  --implementation cp --python-version 3.11 --abi cp311 --abi none \
  --platform manylinux_2_28_x86_64 --platform manylinux_2_25_x86_64 --platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64 \
  "torch==$TORCH" "nvidia-cuda-runtime==$CUDART" "nvidia-cuda-cupti==$CUPTI"; then
  fail "pip could not fetch torch==$TORCH, nvidia-cuda-runtime==$CUDART and nvidia-cuda-cupti==$CUPTI (its own message is above)" \
    "check the network, a proxy (HTTPS_PROXY) or pip's index (PIP_INDEX_URL), then run this again"
fi

note "unpacking headers and libraries"
python3 - "$work/wheels" "$work/libtorch" <<'PY'
import os, shutil, sys, zipfile

wheels, out = sys.argv[1:]
libraries = {"libtorch_cpu.so", "libc10.so", "libgomp.so.1", "libcudart.so.13", "libcupti.so.13"}


def unpack(archive, member, target):
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with archive.open(member) as source, open(target, "wb") as sink:
        shutil.copyfileobj(source, sink, 1 << 20)


found = set()
for wheel in sorted(os.listdir(wheels)):
    with zipfile.ZipFile(os.path.join(wheels, wheel)) as archive:
        for member in archive.namelist():
            name = os.path.basename(member)
            if member.startswith("torch/include/") and name:
                unpack(archive, member, os.path.join(out, member[len("torch/"):]))
            elif name in libraries and name not in found and (member.startswith("torch/lib/") or member.startswith("nvidia/")):
                unpack(archive, member, os.path.join(out, "lib", name))
                found.add(name)
if found != libraries:
    sys.exit("the wheels lack " + ", ".join(sorted(libraries - found)))
# The linker asks for libtorch; here that name stands for the CPU library, so that nothing links CUDA.
with open(os.path.join(out, "lib", "libtorch.so"), "w") as script:
    script.write("INPUT(-ltorch_cpu)\n")
PY
printf '%s' "$TORCH" >"$work/libtorch/build-version"

complete "$work/libtorch" || fail "the unpacked folder is incomplete; this is a defect of the script or of the wheels: $work/libtorch"
rm -rf "$home"
mv -T "$work/libtorch" "$home"
point
note "libtorch $TORCH is ready at $home"
