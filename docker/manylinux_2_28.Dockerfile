# Builder image of the wheels: manylinux_2_28 with gcc-toolset-14, its Pythons, clang and Bazel.
#
# ci_build downloads the files of the build context and verifies each sha256 of images.toml; the build itself uses no
# network. ROCm is not part of the image: builds mount it read-only at /opt/rocm.
ARG BASE
FROM ${BASE} AS tools
ARG LLVM_MAJOR
COPY downloads/ /downloads/
COPY llvm-members.txt /llvm-members.txt
RUN cd /downloads && sha256sum --check --strict SHA256SUMS
# Unpack only the programs that compile and link; LLVM's development libraries are 90 % of the archive.
RUN mkdir -p /tools/usr/lib/llvm-${LLVM_MAJOR} /tools/usr/local/bin \
 && tar -xf /downloads/llvm -C /tools/usr/lib/llvm-${LLVM_MAJOR} --strip-components=1 --no-same-owner --wildcards \
      -T /llvm-members.txt \
 && install -m 755 /downloads/bazel /tools/usr/local/bin/bazel
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
# Check the compilers now instead of failing after an hour of compilation.
RUN test -x /opt/rh/gcc-toolset-14/root/usr/bin/g++ \
 && printf '#include <vector>\nint main() { return std::vector<int>{0}[0]; }\n' > /tmp/probe.cc \
 && clang++ -std=c++17 -fuse-ld=lld /tmp/probe.cc -o /tmp/probe && /tmp/probe \
 && g++ -std=c++17 /tmp/probe.cc -o /tmp/probe && /tmp/probe \
 && rm /tmp/probe /tmp/probe.cc \
 && test -x /usr/local/bin/bazel
WORKDIR /jax
