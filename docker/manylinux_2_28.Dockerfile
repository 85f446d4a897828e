# The image that wheels are compiled in: manylinux_2_28 with its gcc-toolset-14 and Pythons, a clang and a Bazel.
#
# Everything comes with the build context, where ci_build has put it after it had checked each sha256 of images.toml;
# nothing is fetched while this is built. ROCm is not in it: it is mounted, read-only, at /opt/rocm.
ARG BASE
FROM ${BASE} AS tools
ARG LLVM_MAJOR
COPY downloads/ /downloads/
COPY llvm-members.txt /llvm-members.txt
RUN cd /downloads && sha256sum --check --strict SHA256SUMS
# Of the archive, what compiles and links; the libraries to write tools with are nine tenths of it.
RUN mkdir -p /tools/usr/lib/llvm-${LLVM_MAJOR} /tools/usr/local/bin \
 && tar -xf /downloads/llvm -C /tools/usr/lib/llvm-${LLVM_MAJOR} --strip-components=1 --no-same-owner --wildcards \
      -T /llvm-members.txt \
 && install -m 755 /downloads/bazel /tools/usr/local/bin/bazel
# A library that the archive's programs need and that newer systems have no more.
RUN if [ -e /downloads/libtinfo5 ]; then \
      install -m 755 /downloads/libtinfo5 /tools/usr/lib/llvm-${LLVM_MAJOR}/lib/libtinfo.so.5; \
    fi
COPY clang.cfg /tools/usr/lib/llvm-${LLVM_MAJOR}/bin/clang.cfg
COPY clang.cfg /tools/usr/lib/llvm-${LLVM_MAJOR}/bin/clang++.cfg

FROM ${BASE}
ARG LLVM_MAJOR
COPY --from=tools /tools/ /
# Programs of the archive look for libraries in their own ../lib.
ENV PATH=/opt/rh/gcc-toolset-14/root/usr/bin:/usr/lib/llvm-${LLVM_MAJOR}/bin:/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin \
    ROCM_PATH=/opt/rocm
# Bazel asks for a user, a home and a place for its server; any uid may run here, and nothing but mounts is writable.
RUN mkdir -p /opt/rocm /jax /xla /cache /out && chmod 755 /opt/rocm /jax /xla /cache /out
# What is not right shows here and not after an hour of compiling.
RUN test -x /opt/rh/gcc-toolset-14/root/usr/bin/g++ \
 && printf '#include <vector>\nint main() { return std::vector<int>{0}[0]; }\n' > /tmp/probe.cc \
 && clang++ -std=c++17 -fuse-ld=lld /tmp/probe.cc -o /tmp/probe && /tmp/probe \
 && g++ -std=c++17 /tmp/probe.cc -o /tmp/probe && /tmp/probe \
 && rm /tmp/probe /tmp/probe.cc \
 && test -x /usr/local/bin/bazel
WORKDIR /jax
