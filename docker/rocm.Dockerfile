# ROCm at /opt/rocm: the tree that ci_build downloaded, verified and locked.
ARG BASE
FROM ${BASE}
COPY rocm/ /opt/rocm/
RUN mkdir -p /etc/ld.so.conf.d && printf '/opt/rocm/lib\n' > /etc/ld.so.conf.d/rocm.conf && ldconfig
