# Install a set's wheels and their dependencies in every Python, by hash and without an index.
ARG BASE
FROM ${BASE} AS installed
ARG PYTHONS
COPY wheels/ /wheels/
RUN set -e; for version in ${PYTHONS}; do \
      python=/opt/python/$version/bin/python3; \
      "$python" -m pip install --no-cache-dir --no-index --no-deps --require-hashes \
        --find-links /wheels --requirement "/wheels/requirements-$version.txt"; \
      "$python" -m pip check; \
    done

FROM ${BASE}
COPY --from=installed /opt/python/ /opt/python/
COPY wheels/requirements-*.txt selftest.py /usr/share/jax-rocm-release/
