# Builder image of the wheels: manylinux_2_28 with gcc-toolset-14, its Pythons, clang, Bazel, xxd and libnuma.
#
# ci_build downloads the files of the build context and verifies each sha256 of images.toml; the build itself uses no
# network. ROCm is not part of the image: builds mount it read-only at /opt/rocm.
ARG BASE
FROM ${BASE} AS tools
ARG LLVM_MAJOR
COPY downloads/ /downloads/
COPY llvm-members.txt /llvm-members.txt
# Unpack only the programs that compile and link; LLVM's development libraries are 90 % of the archive.
RUN mkdir -p /tools/usr/lib/llvm-${LLVM_MAJOR} /tools/usr/local/bin \
 && tar -xf /downloads/llvm -C /tools/usr/lib/llvm-${LLVM_MAJOR} --strip-components=1 --no-same-owner --wildcards \
      -T /llvm-members.txt \
 && install -m 755 /downloads/bazel /tools/usr/local/bin/bazel
# XLA calls xxd, and links rccl with -lnuma although no code of XLA uses libnuma. AS_NEEDED keeps libnuma.so.1 out of the
# wheels. Both are compiled from releases of their projects, since packages of AlmaLinux are not pinned by a digest.
RUN mkdir -p /numactl /tools/usr/include /tools/usr/lib64 && cd /numactl \
 && tar -xzf /downloads/numactl --strip-components=1 --no-same-owner && : > config.h \
 && gcc=/opt/rh/gcc-toolset-14/root/usr/bin/gcc \
 && $gcc -O2 -fPIC -D_GNU_SOURCE -DTLS=__thread -shared -Wl,-soname,libnuma.so.1 \
      -Wl,--version-script,versions.ldscript -Wl,-init,numa_init -Wl,-fini,numa_fini \
      libnuma.c syscall.c distance.c affinity.c sysfs.c rtnetlink.c -o /tools/usr/lib64/libnuma.so.1 \
 && install -m 644 numa.h numaif.h numacompat1.h /tools/usr/include/ \
 && printf 'INPUT ( AS_NEEDED ( /usr/lib64/libnuma.so.1 ) )\n' > /tools/usr/lib64/libnuma.so \
 && $gcc -O2 -x c /downloads/xxd -o /tools/usr/local/bin/xxd
# The archive's programs need libtinfo5, which newer systems no longer have.
RUN if [ -e /downloads/libtinfo5 ]; then \
      install -m 755 /downloads/libtinfo5 /tools/usr/lib/llvm-${LLVM_MAJOR}/lib/libtinfo.so.5; \
    fi
COPY clang.cfg /tools/usr/lib/llvm-${LLVM_MAJOR}/bin/clang.cfg
COPY clang.cfg /tools/usr/lib/llvm-${LLVM_MAJOR}/bin/clang++.cfg

FROM ${BASE}
ARG LLVM_MAJOR
COPY --from=tools /tools/ /
# Programs of the archive search for libraries in their own ../lib.
ENV PATH=/opt/rh/gcc-toolset-14/root/usr/bin:/usr/lib/llvm-${LLVM_MAJOR}/bin:/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin \
    ROCM_PATH=/opt/rocm
# Any uid may run builds here, and only mounts are writable.
RUN mkdir -p /opt/rocm /jax /xla /cache /out && chmod 755 /opt/rocm /jax /xla /cache /out
COPY check-tools.sh /usr/share/jax-rocm-release/
# Check the tools now instead of failing after an hour of compilation.
RUN sh /usr/share/jax-rocm-release/check-tools.sh /usr/lib/llvm-${LLVM_MAJOR}/bin/clang \
      /usr/local/bin/bazel /opt/rh/gcc-toolset-14/root/usr/bin/g++ \
 && printf '#include <vector>\nint main() { return std::vector<int>{0}[0]; }\n' > /tmp/probe.cc \
 && clang++ -std=c++17 -fuse-ld=lld /tmp/probe.cc -o /tmp/probe && /tmp/probe \
 && g++ -std=c++17 /tmp/probe.cc -o /tmp/probe && /tmp/probe \
 && rm /tmp/probe /tmp/probe.cc
WORKDIR /jax
