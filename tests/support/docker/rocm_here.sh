#!/bin/sh
# Turns a folder with a Debian into a copy of a ROCm, FOLDER/rocm, whose compiler runs on machines with an older C library:
# it brings its own, with the loader. rocm_here.sh FOLDER ROCM, where ROCM is what rocm.sh made. Run as root.
set -eu
tree=$1
# The loader has to be named by its whole path, which is the one without the ending that folders have while they are made.
llvm=${tree%.new}/rocm/lib/llvm
mkdir "$tree/work"
cp -a "$2" "$tree/rocm"
chroot "$tree" sh -eu -s "$llvm/lib/ld-linux-x86-64.so.2" <<'INSIDE'
apt-get -qq update
cd /work
apt-get -qq -o APT::Sandbox::User=root download libffi8 libedit2 libz3-4 libxml2-16 libbsd0 libmd0 patchelf
for package in *.deb; do dpkg-deb --extract "$package" x; done
lib=/rocm/lib/llvm/lib
cp -P x/usr/lib/*/*.so.* "$lib/"
cd /usr/lib/x86_64-linux-gnu
cp -P ld-linux-x86-64.so.2 libc.so.6 libm.so.6 libgcc_s.so.1 libstdc++.so.6* libz.so.1* libzstd.so.1* libtinfo.so.6* \
  liblzma.so.5* "$lib/"
for program in clang-21 lld; do /work/x/usr/bin/patchelf --set-interpreter "$1" "/rocm/lib/llvm/bin/$program"; done
INSIDE
find "$tree" -mindepth 1 -maxdepth 1 ! -name rocm -exec rm -rf --one-file-system {} +
