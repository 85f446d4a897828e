"""Platform tags of repaired wheels, and the distributions that they exclude."""

from __future__ import annotations

import re

PLATFORM = "manylinux_2_28_x86_64"
"""Lowest platform tag of a repaired wheel: the oldest platform that the gates test."""
AUTO = "auto"
"""Lowest platform tag, from `PLATFORM` on, that is true for every library of a wheel."""
NEWEST_PLATFORM = "manylinux_2_41_x86_64"
"""Newest platform tag that auditwheel knows; what it refuses, no tag permits."""
_MANYLINUX = re.compile(r"manylinux_2_([0-9]+)(_x86_64)?")
_DISTRIBUTIONS = {
    "RHEL 8": 28,
    "Debian 10": 28,
    "Ubuntu 20.04": 31,
    "Debian 11": 31,
    "RHEL 9": 34,
    "Amazon Linux 2023": 34,
    "Ubuntu 22.04": 35,
    "Debian 12": 36,
    "Ubuntu 24.04": 39,
    "RHEL 10": 39,
    "Debian 13": 41,
}
"""Distribution -> minor version of its glibc; Rocky, Alma and Oracle Linux equal RHEL."""


def glibc_of(platform: str) -> int | None:
    """Return the minor glibc version of a tag: 31 for manylinux_2_31; None for others."""
    match = _MANYLINUX.fullmatch(platform)
    return int(match[1]) if match else None


def platform_of(tag: str) -> str:
    """Return the platform of `BuildRequest.platform_tag`: manylinux_2_28_x86_64."""
    return tag if tag == AUTO else f"{tag}_x86_64"


def higher_platform(one: str, other: str) -> str:
    """Return the manylinux tag with the newer glibc; `one` if `other` is no such tag."""
    return max(one, other, key=_glibc)


def _glibc(platform: str) -> int:
    return glibc_of(platform) or 0


def shown_platform(platform: str) -> str:
    """Return the words of a dry run for a platform, which is not known if it is `AUTO`."""
    return f"{PLATFORM} or the lowest true one" if platform == AUTO else platform


def excluded_line(filename: str) -> str:
    """Return a sentence on the distributions that cannot install a wheel.

    Empty for wheels with the tag `PLATFORM` or a lower one.
    """
    platform = filename.removesuffix(".whl").rpartition("-")[2].split(".")[0]
    lowest = glibc_of(PLATFORM)
    glibc = glibc_of(platform)
    if glibc is None or lowest is None or glibc <= lowest:
        return ""
    excluded = [
        name for name, version in _DISTRIBUTIONS.items() if lowest <= version < glibc
    ]
    return (
        f"{filename} needs {platform.removesuffix('_x86_64')}:"
        f" {' and '.join(excluded)} cannot install it."
    )
