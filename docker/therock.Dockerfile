# ROCm from pip packages (rocm[libraries,devel,device-…]), with a link at /opt/rocm.
#
# ci_build resolves the packages in a container of the same image and adds them to the build context. They are installed
# by hash, without an index, into a separate environment.
ARG BASE
FROM ${BASE} AS installed
ARG PYTHON
COPY rocm-wheels/ /rocm-wheels/
RUN set -e; home=/opt/rocm-packages; "${PYTHON}" -m venv --without-pip "$home"; \
    "${PYTHON}" -m pip --python "$home/bin/python3" install --no-cache-dir --no-index --no-deps --require-hashes \
      --find-links /rocm-wheels --requirement /rocm-wheels/requirements.txt; \
    "$home/bin/rocm-sdk" init; mkdir -p /staged/opt; mv "$home" /staged/opt/; ln -s /staged/opt/rocm-packages "$home"; \
    ln -s "$("$home/bin/rocm-sdk" path --root | sed 's,^/staged,,')" /staged/opt/rocm

FROM ${BASE}
# An empty /opt/rocm of the base image would prevent the link.
RUN rm -rf /opt/rocm
COPY --from=installed /staged/opt/ /opt/
COPY rocm-wheels/requirements.txt /usr/share/jax-rocm-release/rocm-requirements.txt
RUN set -e; mkdir -p /etc/ld.so.conf.d /usr/local/bin; printf '/opt/rocm/lib\n' > /etc/ld.so.conf.d/rocm.conf; \
    ldconfig; ln -s /opt/rocm-packages/bin/rocm-sdk /usr/local/bin/rocm-sdk; test -d /opt/rocm/
ENV ROCM_PATH=/opt/rocm
