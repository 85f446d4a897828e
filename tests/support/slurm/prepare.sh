#!/bin/sh
# Makes a folder with a Debian that has Slurm: prepare.sh FOLDER MIRROR SUITE. Run as root.
set -eu
# The libraries are those of a Python that is mounted from this machine.
debootstrap --variant=minbase --include=\
ca-certificates,libbz2-1.0,libffi8,liblzma5,libreadline8,libsqlite3-0,libssl3,python3,\
munge,slurm-client,slurmctld,slurmd "$3" "$1" "$2"
rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/archives/*.deb
# Every container of a cluster has the same key.
dd if=/dev/urandom of="$1/etc/munge/munge.key" bs=128 count=8 status=none
chown --reference="$1/etc/munge" "$1/etc/munge/munge.key"
chmod 400 "$1/etc/munge/munge.key"
mkdir -p "$1/var/spool/slurm"
touch "$1/var/spool/slurm/gpu0" "$1/var/spool/slurm/gpu1"
