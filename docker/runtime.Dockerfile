# Image with the wheels of a set: Ubuntu with Pythons below /opt/python, a ROCm, and the wheels with their dependencies.
#
# ci_build verifies the files of the build context; no step uses the network.
ARG BASE
FROM ${BASE} AS pythons
COPY pythons/ /pythons/
RUN set -e; mkdir -p /staged/opt/python; \
    for archive in /pythons/*; do \
      target=/staged/opt/python/${archive#/pythons/}; mkdir "$target"; \
      tar -xzf "$archive" -C "$target" --strip-components=1 --no-same-owner; \
    done

FROM ${BASE} AS base
ARG DEFAULT_PYTHON
COPY --from=pythons /staged/ /
RUN set -e; mkdir -p /usr/local/bin; \
    for python in /opt/python/*; do ln -s "$python/bin/python3" "/usr/local/bin/python${python#/opt/python/}"; done; \
    for name in python python3; do ln -s "/opt/python/${DEFAULT_PYTHON}/bin/python3" "/usr/local/bin/$name"; done
# The tree that ci_build downloaded, verified and locked; empty if the base image has a ROCm.
COPY rocm/ /opt/rocm/
RUN mkdir -p /etc/ld.so.conf.d && printf '/opt/rocm/lib\n' > /etc/ld.so.conf.d/rocm.conf && ldconfig
ENV PATH=/opt/rocm/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    ROCM_PATH=/opt/rocm

# The wheels themselves stay out of the image.
FROM base AS installed
ARG PYTHONS
COPY wheels/ /wheels/
RUN set -e; for version in ${PYTHONS}; do \
      python=/opt/python/$version/bin/python3; \
      "$python" -m pip install --no-cache-dir --no-index --no-deps --require-hashes \
        --find-links /wheels --requirement "/wheels/requirements-$version.txt"; \
      "$python" -m pip check; \
    done

FROM base
COPY --from=installed /opt/python/ /opt/python/
COPY wheels/requirements-*.txt selftest.py /usr/share/jax-rocm-release/
