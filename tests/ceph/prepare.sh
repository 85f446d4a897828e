#!/bin/sh
# Makes a folder with a Debian that holds Ceph: prepare.sh FOLDER MIRROR. Run as root.
set -eu
tree=$1 mirror=$2
debootstrap --variant=minbase forky "$tree" "$mirror" /usr/share/debootstrap/scripts/sid
# Nothing is configured and nothing is started: the programs are all that is wanted.
chroot "$tree" sh -eu <<'INSIDE'
export DEBIAN_FRONTEND=noninteractive
apt-get -o Acquire::Check-Valid-Until=false -qq update
apt-get -qq --yes --no-install-recommends --download-only install ceph-mon ceph-osd radosgw ceph-common
dpkg --unpack --force-depends /var/cache/apt/archives/*.deb >/dev/null
apt-get clean
ldconfig
radosgw --version
INSIDE
rm -rf "$tree"/var/lib/apt/lists/*
