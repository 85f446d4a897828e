#!/bin/sh
# Puts what a build from source needs into a folder with a Debian: builder.sh FOLDER. Run as root.
# It stands in for the manylinux_2_28 image: Bazel, a host compiler, Pythons below /opt/python, and no ROCm. The tools
# of a worker for remote execution are in it as well, since those run in the image that they build for.
set -eu
tree=$1
# Setting up Java wants /proc, and no more than a runtime is needed of it.
unshare --mount --pid --fork --kill-child --mount-proc="$tree/proc" chroot "$tree" sh -eu <<'INSIDE'
export DEBIAN_FRONTEND=noninteractive
mkdir -p /tmp/jdk/DEBIAN
cat >/tmp/jdk/DEBIAN/control <<'CONTROL'
Package: default-jdk-headless
Version: 2:99
Architecture: all
Maintainer: nobody <nobody@localhost>
Depends: default-jre-headless
Description: the runtime alone
CONTROL
dpkg-deb --build /tmp/jdk /tmp/jdk.deb >/dev/null
apt-get -qq update
apt-get -qq --yes --no-install-recommends install /tmp/jdk.deb \
  bazel-bootstrap buildbox clang-21 git lld-21 python3.13-dev python3.14-dev >/tmp/log 2>&1 || { tail -n 40 /tmp/log; exit 1; }
rm -rf /tmp/jdk /tmp/jdk.deb /tmp/log /var/lib/apt/lists/*
apt-get clean
# This runner of actions would need /dev/fuse.
rm /usr/bin/buildbox-fuse
# Bazel finds Java by where the compiler is.
ln -s java "$(readlink -f /usr/lib/jvm/default-java)/bin/javac"
ln -s /usr/lib/jvm/default-java/bin/javac /usr/bin/javac
# The places where the real image has its compilers and Bazel.
ln -s /usr/bin/bazel /usr/local/bin/bazel
ln -s llvm-21 /usr/lib/llvm-18
mkdir -p /opt/rh/gcc-toolset-14/root/usr/bin
for name in gcc g++; do ln -s "/usr/bin/$name" /opt/rh/gcc-toolset-14/root/usr/bin/$name; done
for minor in 13 14; do
  bin=/opt/python/cp3$minor-cp3$minor/bin
  mkdir -p "$bin"
  for name in python python3 "python3.$minor"; do ln -s "/usr/bin/python3.$minor" "$bin/$name"; done
done
HOME=/root USER=root bazel --version
INSIDE
