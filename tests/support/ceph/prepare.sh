#!/bin/sh
# Puts Ceph into a folder with a Debian: prepare.sh FOLDER. Run as root.
set -eu
# Nothing is configured and nothing is started: the programs are all that is wanted.
chroot "$1" sh -eu <<'INSIDE'
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update
apt-get -qq --yes --no-install-recommends --download-only install ceph-mon ceph-osd radosgw ceph-common
dpkg --unpack --force-depends /var/cache/apt/archives/*.deb >/dev/null
apt-get clean
ldconfig
radosgw --version
INSIDE
rm -rf "$1"/var/lib/apt/lists/*
