"""Device code of a library by gfx target."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetCode:
    """Device code of one gfx target.

    Attributes:
        code_bytes: size of its code objects, uncompressed.
        bundles: number of fat binaries that have code for it.
    """

    target: str
    code_bytes: int
    bundles: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceCode:
    """The fat binaries of one library.

    Attributes:
        bundles: number of bundles.
        formats: such as `CCOB v3 zstd` or `plain`, sorted.
        stored: bytes of the bundles in the library.
        unpacked: bytes of the bundles once decompressed.
        targets: sorted by `target`.
    """

    bundles: int = 0
    formats: tuple[str, ...] = ()
    stored: int = 0
    unpacked: int = 0
    targets: tuple[TargetCode, ...] = ()
