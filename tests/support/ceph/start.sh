#!/bin/sh
# Runs inside the folder of prepare.sh, in a process namespace of its own that ends with it: start.sh DATA MON RGW,
# with a folder for all data and the ports of monitor and gateway on 127.0.0.1.
set -eu
data=$1 mon=$2 rgw=$3
mkdir -p "$data/mon" "$data/osd" "$data/run"
fsid=$(cat /proc/sys/kernel/random/uuid)
cat >"$data/ceph.conf" <<CONF
[global]
fsid = $fsid
mon_host = [v2:127.0.0.1:$mon/0]
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
ms_bind_ipv6 = false
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
keyring = $data/keyring
run_dir = $data/run
admin_socket = $data/run/\$name.asok
log_file = $data/run/\$name.log
mon_cluster_log_file = $data/run/cluster.log
mon_data = $data/mon
mon_allow_pool_size_one = true
# A share of the disk says nothing of whether a few MB fit.
mon_data_avail_crit = 0
osd_data = $data/osd
osd_objectstore = bluestore
bluestore_block_size = 8589934592
bluestore_block_create = true
osd_memory_target = 939524096
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 1
osd_pool_default_pgp_num = 1
osd_crush_chooseleaf_type = 0
rgw_frontends = beast endpoint=127.0.0.1:$rgw
rgw_thread_pool_size = 64
CONF
ceph="ceph -c $data/ceph.conf"
ceph-authtool --create-keyring "$data/keyring" --gen-key -n mon. --cap mon 'allow *'
ceph-authtool "$data/keyring" --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *'
ceph-authtool "$data/keyring" --gen-key -n osd.0 --cap mon 'allow profile osd' --cap osd 'allow *'
ceph-authtool "$data/keyring" --gen-key -n client.rgw --cap mon 'allow rwx' --cap osd 'allow rwx'
monmaptool --create --fsid "$fsid" --addv a "[v2:127.0.0.1:$mon]" "$data/monmap"
ceph-mon -c "$data/ceph.conf" --mkfs -i a --monmap "$data/monmap" --keyring "$data/keyring"
ceph-mon -c "$data/ceph.conf" -i a -f &
uuid=$(cat /proc/sys/kernel/random/uuid)
$ceph osd new "$uuid"
$ceph auth import -i "$data/keyring"
ceph-osd -c "$data/ceph.conf" -i 0 --mkfs --osd-uuid "$uuid" --keyring "$data/keyring"
ceph-osd -c "$data/ceph.conf" -i 0 -f &
radosgw -c "$data/ceph.conf" -n client.rgw -f &
wait
