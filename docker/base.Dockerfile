# Base of every runtime image: Ubuntu with Pythons below /opt/python and, in the dev images, clang.
#
# ci_build verifies the files of the build context. Only the dev images use the network, for signed packages of Ubuntu:
# a C++ library and linker files, which LLVM's archive lacks.
ARG BASE
FROM ${BASE} AS tools
ARG LLVM_MAJOR
COPY downloads/ /downloads/
COPY llvm-members.txt /llvm-members.txt
RUN cd /downloads && sha256sum --check --strict SHA256SUMS
RUN set -e; mkdir -p /staged/opt/python; \
    for archive in /downloads/python-*; do \
      target=/staged/opt/python/${archive#/downloads/python-}; mkdir "$target"; \
      tar -xzf "$archive" -C "$target" --strip-components=1 --no-same-owner; \
    done
RUN set -e; if [ -n "${LLVM_MAJOR}" ]; then \
      command -v xz || { apt-get update; apt-get install --yes --no-install-recommends xz-utils; }; \
      target=/staged/usr/lib/llvm-${LLVM_MAJOR}; mkdir -p "$target"; \
      tar -xf /downloads/llvm -C "$target" --strip-components=1 --no-same-owner --wildcards -T /llvm-members.txt; \
      if [ -e /downloads/libtinfo5 ]; then install -m 755 /downloads/libtinfo5 "$target/lib/libtinfo.so.5"; fi; \
    fi

FROM ${BASE}
ARG LLVM_MAJOR
ARG DEFAULT_PYTHON
COPY --from=tools /staged/ /
RUN set -e; mkdir -p /usr/local/bin; \
    for python in /opt/python/*; do ln -s "$python/bin/python3" "/usr/local/bin/python${python#/opt/python/}"; done; \
    for name in python python3; do ln -s "/opt/python/${DEFAULT_PYTHON}/bin/python3" "/usr/local/bin/$name"; done; \
    for python in /opt/python/*; do "$python/bin/python3" -m pip --version; done
ENV PATH=/opt/rocm/bin:/usr/lib/llvm-${LLVM_MAJOR}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    ROCM_PATH=/opt/rocm
# Check the compiler now.
RUN set -e; if [ -n "${LLVM_MAJOR}" ]; then \
      command -v g++ || { apt-get update; apt-get install --yes --no-install-recommends g++; rm -rf /var/lib/apt/lists/*; }; \
      printf '#include <vector>\nint main() { return std::vector<int>{0}[0]; }\n' > /tmp/probe.cc; \
      clang++ -std=c++17 -fuse-ld=lld /tmp/probe.cc -o /tmp/probe; /tmp/probe; rm /tmp/probe /tmp/probe.cc; \
    fi
