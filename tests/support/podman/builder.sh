#!/bin/sh
# Puts what a mounted ROCm's compiler needs into a folder with a Debian: builder.sh FOLDER. Run as root.
# And a Python where a build from source looks for it, with stand-ins for tools that print a version and do nothing else,
# for builds that start none of them.
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
cat >/usr/local/bin/stand-in <<'TOOL'
#!/bin/sh
case $1 in
  --version | -v) echo "${0##*/} 7.7.1 stand-in" ;;
  -std=*) ;;
  *) exit 1 ;;
esac
TOOL
chmod 755 /usr/local/bin/stand-in
for name in ar git patchelf python3 xxd bazel; do ln -sf stand-in /usr/local/bin/$name; done
for name in clang clang++; do ln -s /usr/local/bin/stand-in /usr/lib/llvm-21/bin/$name; done
INSIDE
