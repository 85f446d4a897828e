#!/bin/sh
# Puts what a build from source needs into a folder with a Debian: builder.sh FOLDER. Run as root.
# It stands in for the manylinux_2_28 image: Bazel, a host compiler, Pythons below /opt/python, and no ROCm. The tools
# of a worker for remote execution are in it as well, since those run in the image that they build for.
set -eu
tree=$1
cp -r "$(dirname "$0")/../workspace/jax" "$tree/tmp/jax"
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
  bazel-bootstrap buildbox clang-21 git libnetty-tcnative-jni libnuma-dev lld-21 patchelf python3-minimal python3.13-dev \
  python3.14-dev xxd >/tmp/log 2>&1 || { tail -n 40 /tmp/log; exit 1; }
rm -rf /tmp/jdk /tmp/jdk.deb /tmp/log /var/lib/apt/lists/*
apt-get clean
# This runner of actions would need /dev/fuse.
rm /usr/bin/buildbox-fuse
# Debian's Bazel speaks TLS to gRPC servers only with this library, which it looks for beside itself.
cp /usr/lib/*/jni/libnetty-tcnative.so /usr/share/bazel/libnetty_tcnative.so
# Bazel finds Java by where the compiler is.
ln -s java "$(readlink -f /usr/lib/jvm/default-java)/bin/javac"
ln -s /usr/lib/jvm/default-java/bin/javac /usr/bin/javac
# The places where the real image has its compilers and Bazel.
ln -s /usr/bin/bazel /usr/local/bin/bazel
ln -s llvm-21 /usr/lib/llvm-18
mkdir -p /opt/rh/gcc-toolset-14/root/usr/bin
for name in gcc g++; do ln -s "/usr/bin/$name" /opt/rh/gcc-toolset-14/root/usr/bin/$name; done
# Debian has two Pythons; 3.13 stands in for the two older ones, and reports their version.
for minor in 11 12 13 14; do
  bin=/opt/python/cp3$minor-cp3$minor/bin
  mkdir -p "$bin"
  if [ "$minor" -lt 13 ]; then
    echo "#!/bin/sh
[ \"\$*\" = --version ] && { echo Python 3.$minor.0; exit; }
exec /usr/bin/python3.13 \"\$@\"" >"$bin/python"
    chmod 755 "$bin/python"
  else
    ln -s "/usr/bin/python3.$minor" "$bin/python"
  fi
  for name in python3 "python3.$minor"; do ln -s python "$bin/$name"; done
done
# Each container starts Bazel anew, which takes half as long with the classes of a build in a cache (JEP 483) and only
# the quick one of Java's compilers.
settings=/etc/bazel/bazelrc
quick() { echo "startup --host_jvm_args=-XX:$1" >>$settings; }
quick +UseSerialGC
quick TieredStopAtLevel=1
export HOME=/root USER=root
cd /tmp/jax
classes=/usr/share/bazel/classes.aot
server="bazel --output_user_root=/tmp/out --host_jvm_args=-XX:AOTCacheOutput=$classes"
$server build --repo_env=HERMETIC_PYTHON_VERSION=3.13 //jaxlib/tools:jaxlib_wheel >/tmp/log 2>&1 || { tail -n 40 /tmp/log; exit 1; }
$server shutdown >/tmp/log 2>&1  # it waits until they are written
quick AOTCache=$classes
cd /
chmod -R u+w /tmp/out
rm -rf /tmp/out /tmp/jax /tmp/log
[ -s $classes ]
bazel --version
INSIDE
