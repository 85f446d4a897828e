"""Comparison of the device code in a library with the code that its constructors registered with HIP's stand-in."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from core.errors import ElfError, FatbinError
from core.model import Finding
from promotion.gates.common.gate import error
from promotion.policy.set_rules import missing_targets
from wheelkit.findings import finding
from wheelkit.gpu.bundle_reader import find_bundles
from wheelkit.gpu.fatbin import read_variables
from wheelkit.gpu.registration import WRAPPER_MAGIC, WRAPPER_VERSION, registered_kernels

_READ_BY_COVERAGE = "The coverage gate read other kernels from the constructors; report this with the library."
_OF_POINTER = 8
"""Size in bytes of the device variable of a managed variable, which HIP sets to the address of its memory."""
_COMPILED_UNIT = "__hip_cuid_"
"""Beginning of the variable by which linkers tell compiled units apart, which is not registered."""
_SHOWN = 3
"""Maximum number of variables that a finding names."""

Variables = Mapping[int, Mapping[str, Mapping[str, int]]]
"""Address of a bundle -> target -> variable -> size in bytes."""
Registered = Mapping[str, Sequence[Any]]
"""Hexadecimal address of each registered bundle -> magic and version of its wrapper, number of its kernels, SHA-256 of
their names, and its variables as kind, name and size in bytes (`load_child.py`)."""


def registration_findings(name: str, member: str, file: Path, registered: Registered) -> Iterator[Finding]:
    """Yield findings on bundles that HIP does not get when a library is loaded, or gets with other kernels.

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
        count = f"{len(bundles) - len(lost)} of its {len(bundles)} bundles of device code"
        yield finding("registration-missing", f"{name} registers {count} with HIP when it is loaded.", member=member)
    for address, (magic, version, *_) in sorted(seen.items()):
        if (magic, version) != (WRAPPER_MAGIC, WRAPPER_VERSION):
            text = f"{name} registers the bundle at {address:#x} with magic {magic:#x} and version {version}."
            yield finding("registration-missing", text, member=member)
    read = {bundle.address: bundle for bundle in constructors}
    for address, facts in sorted(seen.items()):
        bundle = read.get(address)
        if bundle is not None and bundle.unread:
            continue
        names = bundle.kernels if bundle else frozenset[str]()
        if facts[2:4] != (len(names), kernels_digest(names)):
            text = f"{name} registers {facts[2]} kernels of the bundle at {address:#x}, not the {len(names)} that its"
            yield error("registration-differs", f"{text} constructors name.", _READ_BY_COVERAGE, member=member)


def variable_findings(
    name: str, member: str, file: Path, registered: Registered, targets: Sequence[str]
) -> Iterator[Finding]:
    """Yield findings on registered variables that the code for a target lacks, or has with another size.

    HIP looks up a variable when it is first used on a GPU, and ends the process if the code lacks it
    (ROCm/clr, hipamd/src/hip_platform.cpp and hip_global.cpp).

    Args:
        targets: targets of the set.
    """
    by_bundle = {int(address, 16): facts[4] for address, facts in registered.items() if facts[4]}
    if not by_bundle:
        return
    try:
        present = read_variables(file, by_bundle)
        lost = _lost(by_bundle, present, lambda: read_variables(file, [int(address, 16) for address in registered]))
    except (ElfError, FatbinError):  # the coverage gate reports damage
        return
    missing: dict[str, list[str]] = {}
    for address, rows in sorted(by_bundle.items()):
        codes = present.get(address, {})
        for target, (kind, variable, size) in itertools.product(targets, rows):
            serving = [sizes for code, sizes in codes.items() if not missing_targets([code], [target])]
            found = {sizes[variable] for sizes in serving if variable in sizes}
            expected = {"variable": size, "managed": _OF_POINTER}.get(kind)
            if serving and not found and (kind != "variable" or (address, variable) in lost):
                missing.setdefault(target, []).append(variable)
            elif found and expected not in (None, *found):
                text = f"{name} registers {variable} with {expected} bytes; its code for {target} has {min(found)}."
                yield finding("variable-differs", text, member=member)
    for target, names in missing.items():
        some = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
        count = f"{len(names)} registered variable{'s' if len(names) > 1 else ''}"
        text = f"{name} has no code for {target} with {count}: {some}."
        yield finding("variable-missing", text, member=member)


def _lost(
    by_bundle: Mapping[int, Sequence[Sequence[Any]]], present: Variables, read_all: Callable[[], Variables]
) -> set[tuple[int, str]]:
    """Return the bundle and name of variables that some code must have.

    Clang registers a variable that no host or device code uses, but leaves it out of the code for every target (LLVM,
    clang/test/CodeGenCUDA/host-used-device-var.cu). Such a variable is not lost. It is if only some targets lack it,
    if another bundle has it, or if the code of its bundle has a variable that is not registered.
    """
    lost, elsewhere = set[tuple[int, str]](), dict[str, set[int]]()
    for address, rows in by_bundle.items():
        codes = present.get(address, {}).values()
        held = {name for sizes in codes for name in sizes}
        unregistered = {name for name in held if not name.startswith(_COMPILED_UNIT)} - {row[1] for row in rows}
        for variable in {row[1] for row in rows}:
            if all(variable in sizes for sizes in codes):
                continue
            if variable not in held and not unregistered and not elsewhere:
                for other, found in read_all().items():
                    for name in (name for sizes in found.values() for name in sizes):
                        elsewhere.setdefault(name, set()).add(other)
            if variable in held or unregistered or elsewhere.get(variable):
                lost.add((address, variable))
    return lost


def kernels_digest(names: frozenset[str]) -> str:
    """Return the SHA-256 over the sorted names of kernels."""
    return hashlib.sha256(b"\n".join(sorted(name.encode() for name in names))).hexdigest()
