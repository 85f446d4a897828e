#!/bin/sh
# Turns a folder with a Debian into one with a ROCm, FOLDER/rocm: rocm.sh FOLDER VERSION DEVICE_LIBRARIES, where the last
# one is the folder with the device libraries, in a layout of TheRock; clang finds them nowhere else. Compiler, device
# libraries, HIP and its headers are the real ones of Debian's packages; libamdhip64 gets the soname that it has in
# ROCm 7. Links, and small files in place of gigabytes of kernels, are added by tests.support.made_rocm. Run as root.
set -eu
tree=$1 version=$2 bitcode=$3
mkdir "$tree/work"
chroot "$tree" sh -eu <<'INSIDE'
apt-get -qq update
cd /work
apt-get -qq -o APT::Sandbox::User=root download hipcc rocm-device-libs-21 libamd-comgr3 libamdhip64-6 libamdhip64-dev \
  libhiprtc6 libhiprtc-builtins6 libhsa-runtime64-1 libhsa-runtime-dev clang-21 clang-tools-21 lld-21 libllvm21 \
  libclang-cpp21 libclang-common-21-dev llvm-21 patchelf
for package in *.deb; do dpkg-deb --extract "$package" x; done
# Its compiler is to use its own libraries, wherever the tree lies.
cd x/usr/lib/llvm-21/bin
for program in clang-21 lld clang-offload-bundler clang-linker-wrapper llvm-objcopy llvm-objdump; do
  /work/x/usr/bin/patchelf --set-rpath '$ORIGIN/../lib' "$(readlink -f "$program")"
done
INSIDE
from=$tree/work/x/usr
rocm=$tree/rocm
llvm=$rocm/lib/llvm
mkdir -p "$rocm/.info" "$rocm/bin" "$rocm/include" "$llvm/bin" "$llvm/lib/clang" "$(dirname "$rocm/$bitcode")"
echo "$version" | sed 's/[^0-9.].*//' >"$rocm/.info/version"
for name in clang-21 clang clang++ lld ld.lld clang-offload-bundler clang-linker-wrapper llvm-objcopy llvm-objdump; do
  cp -P "$from/lib/llvm-21/bin/$name" "$llvm/bin/"
done
cp -P "$from"/lib/*/libLLVM*.so* "$from"/lib/*/libclang-cpp.so* "$llvm/lib/"
cp -r "$from/lib/llvm-21/lib/clang/21" "$llvm/lib/clang/"
mv "$llvm/lib/clang/21/amdgcn/bitcode" "$rocm/$bitcode"
rmdir "$llvm/lib/clang/21/amdgcn"
cp "$from/bin/hipcc" "$from/bin/hipconfig" "$rocm/bin/"
cp -r "$from/include/hip" "$from/include/hsa" "$rocm/include/"
cp -P "$from"/lib/*/libamdhip64.so* "$from"/lib/*/libhiprtc*.so* "$from"/lib/*/libhsa-runtime64.so* \
  "$from"/lib/*/libamd_comgr.so* "$rocm/lib/"
# Libraries that were installed in one folder look for each other beside themselves.
find "$rocm/lib" -maxdepth 1 -type f -name '*.so.*' -exec sed -i 's/libamdhip64\.so\.6/libamdhip64.so.7/g' {} +
rm "$rocm/lib/libamdhip64.so.6"
ln -s "$(cd "$rocm/lib" && ls libamdhip64.so.6.*)" "$rocm/lib/libamdhip64.so.7"
ln -sf libamdhip64.so.7 "$rocm/lib/libamdhip64.so"
mkdir -p "$rocm/share/hip"
cp "$from/share/hip/version" "$rocm/share/hip/"
find "$tree" -mindepth 1 -maxdepth 1 ! -name rocm -exec rm -rf --one-file-system {} +
