#!/bin/sh
# Puts what a mounted ROCm's compiler needs into a folder with a Debian: builder.sh FOLDER. Run as root.
# And a Python where a build from source looks for it, with names of a Bazel and a clang, for builds that start neither.
set -eu
tree=$1
unshare --mount --pid --fork --kill-child --mount-proc="$tree/proc" chroot "$tree" sh -eu <<'INSIDE'
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update
apt-get -qq --yes --no-install-recommends install libedit2 libffi8 libxml2-16 libz3-4 python3.13 >/tmp/log 2>&1 ||
  { tail -n 40 /tmp/log; exit 1; }
rm -rf /tmp/log /var/lib/apt/lists/*
apt-get clean
mkdir -p /opt/python/cp313-cp313/bin /usr/lib/llvm-21/bin
ln -s /usr/bin/python3.13 /opt/python/cp313-cp313/bin/python
for name in /usr/local/bin/bazel /usr/lib/llvm-21/bin/clang; do ln -s /bin/false $name; done
INSIDE
