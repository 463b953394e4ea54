#!/bin/busybox sh
# The first process of the guest that scripts/rdma-guest.sh makes. Two devices of Soft-RoCE, rxe0 (10.9.0.1, on veth0) and rxe1
# (10.9.0.2, on veth1), are the ends of one link; `link down` cuts it and `link up` mends it. Then it runs /tests/commands and
# says the first status that is not 0.
/bin/busybox mkdir -p /proc /sys /dev /tmp /usr/bin /usr/sbin /sbin
/bin/busybox --install -s /usr/bin
export PATH=/bin:/usr/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs tmp /tmp
mount -t devpts pts /dev/pts

end() {
  echo "status $1" >/dev/ttyS1
  sync
  poweroff -f
}
must() {
  "$@" || { echo "rdma: in the guest, \`$*\` has failed"; end 1; }
}

while read -r module; do must insmod "/modules/$module"; done </modules/order

must /bin/ip link set lo up
must /bin/ip link add veth0 type veth peer name veth1
# Both ends are here: an address of this host that comes in from outside is none that is forged.
for name in all default veth0 veth1; do
  echo 0 >/proc/sys/net/ipv4/conf/$name/rp_filter
  echo 1 >/proc/sys/net/ipv4/conf/$name/accept_local
  echo 1 >/proc/sys/net/ipv4/conf/$name/arp_ignore
  echo 2 >/proc/sys/net/ipv4/conf/$name/arp_announce
done
for side in 0 1; do
  must /bin/ip address add 10.9.0.$((side + 1))/24 dev veth$side
  must /bin/ip link set veth$side mtu 9000
  must /bin/ip link set veth$side up
  must /bin/rdma link add rxe$side type rxe netdev veth$side
done
cat >/bin/link <<'LINK'
#!/bin/busybox sh
/bin/ip link set veth1 "$1" || exit
[ "$1" = up ] || exit 0
# Devices hear of it a moment later.
for i in $(seq 300); do
  [ "$(/bin/rdma link | grep -c 'state ACTIVE')" = 2 ] && exit 0
  usleep 100000
done
echo "link: a device does not come back: $(/bin/rdma link)" >&2
exit 1
LINK
chmod +x /bin/link

# The address of a device is its second GID: the first one is made from its hardware address.
export HOME=/tmp TMPDIR=/tmp RUST_BACKTRACE=1 UCX_IB_GID_INDEX=1
# Stores are at one end of the link, by the options that tests give them; whoever is given none is at the other.
export TQ_RDMA_STORE=rxe0:1 UCX_NET_DEVICES=rxe1:1 TQ_RDMA_LINK=/bin/link TQ_RDMA_ADDRESSES="10.9.0.1 10.9.0.2"
ulimit -l unlimited
ulimit -n 4096
first=0
while read -r command; do
  echo "rdma: $command"
  begun=$(cut -d ' ' -f 1 /proc/uptime)
  (eval "$command") </dev/null
  status=$?
  echo "rdma: status $status after $begun .. $(cut -d ' ' -f 1 /proc/uptime) s"
  [ $first -ne 0 ] || first=$status
done </tests/commands
end $first
