"""The verification of a ROCm, as recorded in wheels.json."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from core.frozen import frozen

ROCM_TRUST = "rocm_trust"
"""Key of `WheelSet.request`; sets without a ROCm do not have it."""


class ChecksumOrigin(enum.StrEnum):
    """Origin of the checksum that a ROCm was compared with."""

    OPTION = "option"
    """given on the command line"""
    LOCK = "lock"
    """pinned in rocm.lock"""
    SIDECAR = "sidecar"
    """`.sha256` file beside the tarball on the server"""
    INDEX = "index"
    """digests of the index of packages"""
    SIGNATURE = "signature"
    """signed packages of a repository"""
    FIRST_USE = "first-use"
    """none was known when the ROCm was downloaded"""
    LOCAL = "local"
    """none, for files of this machine"""


@frozen
class RocmTrust:
    """Checksum and transport of a ROCm's files.

    Attributes:
        transport: scheme of the URL, such as https; `local` for files of this machine.
    """

    checksum: ChecksumOrigin
    transport: str

    @property
    def encrypted(self) -> bool:
        """Return whether the files came over an encrypted connection, or over none."""
        return self.transport != "http"


def load_trust(request: Mapping[str, object]) -> RocmTrust | None:
    """Return the record in a set's request; None if it is missing or invalid."""
    match request.get(ROCM_TRUST):
        case {"checksum": str(checksum), "transport": str(transport)} if checksum in [
            *ChecksumOrigin
        ]:
            return RocmTrust(checksum=ChecksumOrigin(checksum), transport=transport)
        case _:
            return None
