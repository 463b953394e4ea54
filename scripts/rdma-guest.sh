#!/usr/bin/env bash
# Runs commands in a virtual machine that has RDMA: two devices of Soft-RoCE with a link between them that can be cut.
#
#   scripts/rdma-guest.sh COMMAND...   each is one argument: a program of this machine and its words ("target/debug/x --quiet")
#   scripts/rdma-guest.sh --prepare    only installs what this needs
#
# The host needs neither InfiniBand nor KVM: QEMU emulates the processor. The guest is Debian's kernel, busybox, the programs and the
# libraries that they are linked to; `scripts/rdma-init.sh` says what it looks like inside. Its output is shown. This ends with the
# status of the first command that fails, with 124 when all of it takes longer than TQ_RDMA_SECONDS (900), and with 77 when
# something cannot be had here. Everything is kept in target/rdma.
set -euo pipefail
cd "$(dirname "$0")/.."

[ $# -gt 0 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 64; }
seconds=${TQ_RDMA_SECONDS:-900}
work=${CARGO_TARGET_DIR:-target}/rdma
mkdir -p "$work"
work=$(realpath "$work")

absent() { # what, what to do
  echo "rdma: no $1 here; $2. Nothing was tested." >&2
  exit 77
}

# Debian's packages, by the command or file that each is wanted for.
missing=()
want() {
  [ -e "$1" ] || command -v "$1" >/dev/null || missing+=("$2")
}
want qemu-system-x86_64 qemu-system-x86
want busybox busybox-static
want cpio cpio
want depmod kmod
want strip binutils
want rdma iproute2
want /etc/libibverbs.d/rxe.driver ibverbs-providers
want /usr/include/infiniband/verbs.h libibverbs-dev
want /usr/include/rdma/rdma_cma.h librdmacm-dev
if [ ${#missing[@]} -gt 0 ]; then
  todo="install ${missing[*]} (Debian's names)"
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || absent "${missing[*]}" "$todo"
  { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"; } >"$work/apt.log" 2>&1 ||
    absent "${missing[*]}" "$todo; apt-get has failed, see $work/apt.log"
fi
file -L "$(command -v busybox)" 2>/dev/null | grep -q 'dynamically linked' && absent "static busybox" "install busybox-static"

# The kernel is unpacked, not installed.
if [ ! -e "$work/kernel/done" ]; then
  kernel=$(apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/.*Depends: \(linux-image-[^ ]*\).*/\1/p' | head -n 1) || true
  [ -n "$kernel" ] || absent "kernel" "run this where apt-get knows Debian's linux-image-amd64 (apt-get update)"
  rm -rf "$work/kernel"
  mkdir -p "$work/kernel"
  (cd "$work/kernel" && apt-get download "$kernel" >"$work/apt.log" 2>&1) || absent "$kernel" "see $work/apt.log"
  dpkg-deb -x "$work/kernel/$kernel"_*.deb "$work/kernel"
  rm "$work/kernel/$kernel"_*.deb
  depmod -b "$work/kernel" "$(ls "$work/kernel/lib/modules")"
  touch "$work/kernel/done"
fi
version=$(ls "$work/kernel/lib/modules")
[ "$1" != --prepare ] || exit 0

root=$work/root
rm -rf "$root"
mkdir -p "$root"/{bin,etc,lib64,modules,run,tests} "$root/usr/lib/x86_64-linux-gnu/libibverbs"
cp scripts/rdma-init.sh "$root/init"
cp -L "$(command -v busybox)" "$root/bin/busybox"
# Modules in the order of their needs.
for module in crc32_generic veth rdma_ucm rdma_rxe; do
  modprobe -d "$work/kernel" -S "$version" --show-depends "$module"
done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++' | while read -r file; do
  cp "$file" "$root/modules"
  basename "$file" >>"$root/modules/order"
done

linked() { # The libraries of a program, where it looks for them; scripts and static programs have none.
  { ldd "$1" 2>/dev/null || true; } | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p; s/^[[:space:]]*\(\/[^ ]*ld-linux[^ ]*\) .*/\1/p' | while read -r file; do
    mkdir -p "$root$(dirname "$file")"
    [ -e "$root$file" ] || cp -L "$file" "$root$file"
  done
}
for tool in rdma ip; do
  cp -L "$(command -v $tool)" "$root/bin/$tool"
  linked "$root/bin/$tool"
done
mkdir "$root/etc/libibverbs.d"
cp -L /etc/libibverbs.d/rxe.driver "$root/etc/libibverbs.d"
driver=/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so
[ -e "$driver" ] || driver=$(ls /usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav*.so | head -n 1)
cp -L "$driver" "$root/usr/lib/x86_64-linux-gnu/libibverbs"
linked "$driver"
for command in "$@"; do
  read -r program words <<<"$command"
  program=$(command -v "$program") || { echo "rdma: no program $program" >&2; exit 66; }
  name=$(basename "$program")
  [ -e "$root/tests/$name" ] || strip -o "$root/tests/$name" "$program" 2>/dev/null || cp -L "$program" "$root/tests/$name"
  linked "$program"
  echo "/tests/$name $words" >>"$root/tests/commands"
done
(cd "$root" && find . | cpio --quiet -o -H newc) >"$work/initrd"

# Emulated: KVM is not to be had everywhere, and hangs in some guests. The first serial port is the output, the second says the status.
rm -f "$work/status"
status=0
timeout --foreground "$seconds" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -m "${TQ_RDMA_MEGABYTES:-2500}" -smp 2 \
  -display none -no-reboot -nic none -monitor none -serial stdio -serial "file:$work/status" -kernel "$work/kernel/boot/vmlinuz-$version" \
  -initrd "$work/initrd" -append "console=ttyS0 panic=-1 loglevel=3" </dev/null || status=$?
if [ "$status" = 124 ]; then
  echo "rdma: the guest was not done within $seconds s (TQ_RDMA_SECONDS)" >&2
  exit 124
fi
said=$(sed -n 's/^status \([0-9]*\).*/\1/p' "$work/status" 2>/dev/null)
[ -n "$said" ] || { echo "rdma: the guest ended (QEMU: $status) and has not said how its commands went" >&2; exit 1; }
exit "$said"
