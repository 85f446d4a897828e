#!/bin/sh
# Puts what a mounted ROCm's compiler needs into a folder with a Debian: builder.sh FOLDER. Run as root.
set -eu
tree=$1
unshare --mount --pid --fork --kill-child --mount-proc="$tree/proc" chroot "$tree" sh -eu <<'INSIDE'
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update
apt-get -qq --yes --no-install-recommends install libedit2 libffi8 libxml2-16 libz3-4 >/tmp/log 2>&1 ||
  { tail -n 40 /tmp/log; exit 1; }
rm -rf /tmp/log /var/lib/apt/lists/*
apt-get clean
INSIDE
