"""Comparison of a library's device code with the code that it registered."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from core.errors import ElfError, FatbinError
from core.model import Finding
from promotion.gates.common.gate_context import error
from wheelkit.findings import finding
from wheelkit.gpu.bundle_reader import find_bundles
from wheelkit.gpu.registration import WRAPPER_MAGIC, WRAPPER_VERSION, registered_kernels

_READ_BY_COVERAGE = (
    "The coverage gate read other kernels from the constructors; report this with the"
    " library."
)

Registered = Mapping[str, Sequence[Any]]
"""Hexadecimal address of each registered bundle -> its wrapper, kernels and SHA-256.
of their names (`load_child.py`)."""


def registration_findings(
    name: str, member: str, file: Path, registered: Registered
) -> Iterator[Finding]:
    """Yield findings on bundles that HIP does not get, or gets with other kernels.

    Args:
        name: display name of the library.
        member: path of the library inside the wheel.
        file: the library.
    """
    try:
        bundles = {bundle.address for bundle in find_bundles(file)}
        constructors = registered_kernels(file) if bundles else ()
    except (ElfError, FatbinError):  # the inspection and coverage gates report damage
        return
    seen = {int(address, 16): tuple(facts) for address, facts in registered.items()}
    if lost := bundles - seen.keys():
        count = (
            f"{len(bundles) - len(lost)} of its {len(bundles)} bundles of device code"
        )
        yield finding(
            "registration-missing",
            f"{name} registers {count} with HIP when it is loaded.",
            member=member,
        )
    for address, (magic, version, *_) in sorted(seen.items()):
        if (magic, version) != (WRAPPER_MAGIC, WRAPPER_VERSION):
            text = (
                f"{name} registers the bundle at {address:#x} with magic {magic:#x} and"
                f" version {version}."
            )
            yield finding("registration-missing", text, member=member)
    read = {bundle.address: bundle for bundle in constructors}
    for address, facts in sorted(seen.items()):
        bundle = read.get(address)
        if bundle is not None and bundle.unread:
            continue
        names = bundle.kernels if bundle else frozenset[str]()
        if facts[2:4] != (len(names), kernels_digest(names)):
            text = (
                f"{name} registers {facts[2]} kernels of the bundle at {address:#x},"
                f" not the {len(names)} that its"
            )
            yield error(
                "registration-differs",
                f"{text} constructors name.",
                _READ_BY_COVERAGE,
                member=member,
            )


def kernels_digest(names: frozenset[str]) -> str:
    """Return the SHA-256 over the sorted names of kernels."""
    return hashlib.sha256(
        b"\n".join(sorted(name.encode() for name in names))
    ).hexdigest()
