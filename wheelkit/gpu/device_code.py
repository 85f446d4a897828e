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
        bundles: how many there are.
        formats: such as `CCOB v3 zstd` or `plain`, sorted.
        stored: bytes that they take in the library.
        unpacked: bytes once decompressed.
        targets: in the order of `target`.
    """

    bundles: int = 0
    formats: tuple[str, ...] = ()
    stored: int = 0
    unpacked: int = 0
    targets: tuple[TargetCode, ...] = ()
