# Builder image with a ROCm before 7.9, which dnf installs from AMD's repository for RHEL 8.
#
# The repository's metadata is not signed, but every package is (gpgcheck). ci_build records the packages in rocm.lock.
ARG BASE
FROM ${BASE}
ARG REPOSITORY
ARG GRAPHICS
ARG KEY
ARG FINGERPRINT
ARG PACKAGES
# Accept this key only, whatever else the server's file has.
RUN set -e; export GNUPGHOME="$(mktemp -d)"; key=/etc/pki/rpm-gpg/RPM-GPG-KEY-ROCm; \
    curl --fail --silent --show-error --location --retry 5 --output "$GNUPGHOME/keys" "${KEY}"; \
    gpg --batch --import "$GNUPGHOME/keys"; gpg --batch --armor --export "${FINGERPRINT}" > "$key"; \
    grep -q 'BEGIN PGP PUBLIC KEY BLOCK' "$key"; rm -rf "$GNUPGHOME"; \
    printf '[%s]\nname=%s\nbaseurl=%s\nenabled=1\ngpgcheck=1\ngpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-ROCm\n' \
      rocm ROCm "${REPOSITORY}" amdgpu 'AMD graphics' "${GRAPHICS}" > /etc/yum.repos.d/rocm.repo
# The packages make /opt/rocm a link, which an empty folder would prevent; builds mount a copy of the ROCm there.
RUN set -e; rmdir /opt/rocm; dnf install --assumeyes --setopt=install_weak_deps=False ${PACKAGES}; dnf clean all; \
    rm -rf /opt/rocm; mkdir /opt/rocm; set -- /opt/rocm-*/; test $# = 1; test -d "$1"
# Name and version of each package below /opt/rocm-X.Y.Z, and the SHA-256 of its header.
RUN set -e; mkdir -p /usr/share/jax-rocm-release; \
    rpm --query --all --queryformat '[%{=NEVRA} %{=SHA256HEADER} %{FILENAMES}\n]' \
      | awk '$3 ~ "^/opt/rocm-" { print $1, $2 }' | sort -u > /usr/share/jax-rocm-release/rocm-packages.txt; \
    test -s /usr/share/jax-rocm-release/rocm-packages.txt
