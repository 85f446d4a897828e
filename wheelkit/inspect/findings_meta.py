"""Rules about what a wheel says of itself: METADATA, WHEEL, entry points, version.py, tags and file modes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from core.model import Finding
from core.units import human
from wheelkit.inspect.findings import UNINSTALLABLE, finding
from wheelkit.inspect.model import Metadata

JAX_ROCM = re.compile(r"jax-rocm(?P<major>\d+)-(?P<kind>pjrt|plugin)")
"""Normalised names of JAX's ROCm wheels."""

SIZE_BUDGET = 100 << 20
"""Bytes; what the public package index accepts for a file when a project has no raised limit."""

_ROCM_IN_SUMMARY = re.compile(r"\bROCm[:\s]\s*([\w.+]+)")


def identity(meta: Metadata, project: str, version: str, tags: Collection[str]) -> Iterator[Finding]:
    """Whether file name, METADATA and WHEEL tell the same (PEP 427, PEP 491).

    Args:
        meta: as written.
        project: normalised name, from the file name.
        version: from the file name.
        tags: expanded tags of the file name.
    """
    if canonicalize_name(meta.name) != project:
        yield finding("metadata-mismatch", f"METADATA says Name {meta.name or '(nothing)'}, the file name {project}.")
    if _version(meta.version) is None or _version(meta.version) != _version(version):
        said = meta.version or "(nothing)"
        yield finding("metadata-mismatch", f"METADATA says Version {said}, the file name {version}.")
    if set(meta.tags) != set(tags):
        yield finding(
            "tag-mismatch",
            f"WHEEL says {' '.join(sorted(meta.tags)) or '(nothing)'}, the file name {' '.join(sorted(tags))}.",
        )


def description(meta: Metadata, rocm: Collection[str], *, has_elf: bool) -> Iterator[Finding]:
    """What an installer, a licence check and a person read in METADATA.

    Args:
        meta: as written.
        rocm: ROCm versions that compiled the wheel's device code; empty if unknown.
        has_elf: the wheel contains libraries.
    """
    said = rocm_in_summary(meta.summary)
    if not said and JAX_ROCM.fullmatch(canonicalize_name(meta.name)):
        yield finding("summary-rocm-unknown", f"Summary is {meta.summary!r}.")
    elif said and rocm and not any(same_release(said, built) for built in rocm):
        text = f"Summary says ROCm {said}, the compiler of the device code {' '.join(rocm)}."
        yield finding("summary-rocm-wrong", text)
    if not meta.requires_python:
        yield finding("requires-python-missing", "pip offers it to every Python.")
    if not meta.license_files:
        yield finding("license-missing", f"METADATA says {meta.license or 'no licence'}, and no text is in it.")
    if meta.purelib and has_elf:
        yield finding("purelib-with-elf", "WHEEL says `Root-Is-Purelib: true`, and it has libraries.")


def rocm_in_summary(summary: str) -> str:
    """The ROCm version that a Summary names, or empty: `(ROCm:7.14.0)`, but not `(ROCm:unknown)`."""
    said = _ROCM_IN_SUMMARY.search(summary)
    return said[1] if said and _version(said[1]) else ""


def versions(meta: Metadata) -> Iterator[Finding]:
    """Whether version.py files were stamped, and with METADATA's version."""
    for path, stamp in meta.stamped.items():
        if not stamp:
            yield finding("version-unstamped", "_release_version is None, so a date or git decides.", member=path)
        elif meta.version and _version(stamp) != _version(meta.version):
            text = f"_release_version is {stamp}, METADATA says {meta.version}."
            yield finding("version-stale", text, member=path)


def requirements(meta: Metadata) -> Iterator[Finding]:
    """Pins between plugin, pjrt and jaxlib, and extras that nobody can install."""
    parsed = [(line, _requirement(line)) for line in meta.requires_dist]
    for line, requirement in parsed:
        if requirement is None:
            yield finding("metadata-mismatch", f"Requires-Dist {line!r} is not a requirement (PEP 508).")
    always: dict[str, Requirement] = {
        canonicalize_name(r.name): r for _, r in parsed if r and not _in_extra(r, meta.extras)
    }
    match = JAX_ROCM.fullmatch(canonicalize_name(meta.name))
    if match:
        if not {"jax", "jaxlib"} & always.keys():
            yield finding("jaxlib-unpinned", "any jaxlib is accepted, also one with another PJRT API.")
        if match["kind"] == "plugin":
            yield from _pjrt_pin(always.get(f"jax-rocm{match['major']}-pjrt"), match["major"], meta.version)
    for extra in meta.extras:
        names = [canonicalize_name(r.name) for _, r in parsed if r and _in_extra(r, (extra,))]
        dead = [name for name in names if name in UNINSTALLABLE]
        if dead:
            yield finding(
                "extra-uninstallable",
                f"[{extra}] asks for {len(dead)} distributions that no index has, such as {dead[0]}.",
            )


def _pjrt_pin(requirement: Requirement | None, major: str, version: str) -> Iterator[Finding]:
    """The plugin's requirement on its pjrt: exactly its own version, local part included."""
    if requirement is None:
        yield finding("pin-missing", f"no Requires-Dist on jax-rocm{major}-pjrt.")
    elif not requirement.specifier.contains(version, prereleases=True):
        yield finding("pin-stale", f"requires {requirement}, but its own version is {version}.")
    elif {(s.operator, _version(s.version)) for s in requirement.specifier} != {("==", _version(version))}:
        yield finding("pin-inexact", f"requires {requirement}, its own version is {version}.")


def entry_points(meta: Metadata, files: Collection[str]) -> Iterator[Finding]:
    """Whether JAX can discover a pjrt wheel and every entry point leads to a module of the wheel.

    Args:
        meta: as written.
        files: member names.
    """
    match = JAX_ROCM.fullmatch(canonicalize_name(meta.name))
    if match and match["kind"] == "pjrt" and not meta.entry_points.get("jax_plugins"):
        yield finding("entry-point-missing", "no entry point in the group jax_plugins.")
    installed = {re.sub(r"^[^/]+\.data/(pure|plat)lib/", "", name) for name in files}
    for group, entries in meta.entry_points.items():
        for name, reference in entries.items():
            module = reference.partition(":")[0].partition("[")[0].strip()
            if not _has_module(module, installed):
                yield finding("entry-point-broken", f"[{group}] {name} = {reference}: no module {module} in the wheel.")


def _has_module(module: str, installed: Iterable[str]) -> bool:
    path = re.escape(module.replace(".", "/"))
    pattern = re.compile(rf"{path}(/__init__)?\.(py|pyc|so|[\w-]+\.so)")
    return bool(module) and any(pattern.fullmatch(name) for name in installed)


def modes(files: Mapping[str, int]) -> Iterator[Finding]:
    """Files that only their owner may read once an installer keeps the modes.

    Args:
        files: member name -> permission bits, 0 when the archive has none.
    """
    private = [name for name, mode in files.items() if mode and mode & 0o044 != 0o044]
    if private:
        mode = files[private[0]]
        text = f"{len(private)} of {len(files)} files, such as {private[0]} with {mode:04o}."
        yield finding("mode-private", text)


def size(stored: int, budget: int) -> Iterator[Finding]:
    """Whether the wheel is too large to publish; both in bytes."""
    if stored > budget:
        yield finding("size-budget", f"{human(stored)}, the budget is {human(budget)}.")


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def same_release(first: str, second: str) -> bool:
    """Whether two versions have the same first two numbers; compilers do not always tell the third."""
    one, other = _version(first), _version(second)
    return one is None or other is None or one.release[:2] == other.release[:2]


def _requirement(line: str) -> Requirement | None:
    try:
        return Requirement(line)
    except InvalidRequirement:
        return None


def _in_extra(requirement: Requirement, extras: Iterable[str]) -> bool:
    """Whether a requirement holds only when one of the extras is asked for."""
    marker = requirement.marker
    if marker is None or "extra" not in str(marker):
        return False
    return any(marker.evaluate({"extra": extra}) for extra in extras) and not marker.evaluate({"extra": ""})
