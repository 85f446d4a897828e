"""Metadata of a wheel: METADATA, WHEEL, entry points and version.py, and the rules on them."""

from __future__ import annotations

import configparser
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from email.message import Message

from packaging.metadata import Metadata
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import InvalidTag, Tag, parse_tag
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from core.errors import ArchiveError
from core.model import Finding
from wheelkit.archive.wheel_archive import WheelArchive
from wheelkit.findings import finding, some
from wheelkit.inspect.inspection_model import WheelMetadata

_STAMP = re.compile(
    r"^_release_version\b[^=\n]*=\s*(?:None|(['\"])(?P<version>.*?)\1)", re.MULTILINE
)
_MAX_TEXT = 4 << 20
_LICENSE = re.compile(r"licenses/.|(LICEN[CS]E|COPYING|NOTICE)[^/]*$", re.IGNORECASE)
_WHEEL_FIELDS = {"Wheel-Version": ("1.0",), "Root-Is-Purelib": ("true", "false")}


def read_metadata(archive: WheelArchive) -> tuple[WheelMetadata, list[Finding]]:
    """Read METADATA, WHEEL, entry_points.txt and every version.py.

    Missing files and fields are empty.
    """
    findings: list[Finding] = []
    meta = _headers(archive, "METADATA", findings)
    wheel = _headers(archive, "WHEEL", findings)
    findings += check_specification(archive)
    findings += check_wheel_fields(wheel, f"{archive.dist_info}/WHEEL")
    tags: set[Tag] = set()
    for text in _texts(wheel, "Tag"):
        with suppress(InvalidTag):  # an empty one (astral-sh/uv#2149)
            tags |= parse_tag(text)
    return (
        WheelMetadata(
            name=_text(meta, "Name"),
            version=_text(meta, "Version"),
            summary=_text(meta, "Summary"),
            requires_python=_text(meta, "Requires-Python"),
            requires_dist=_texts(meta, "Requires-Dist"),
            extras=_texts(meta, "Provides-Extra"),
            license=_text(meta, "License-Expression") or _text(meta, "License")[:80],
            license_files=_license_files(archive, _texts(meta, "License-File")),
            purelib=_text(wheel, "Root-Is-Purelib").lower() == "true",
            tags=tuple(sorted(map(str, tags))),
            generator=", ".join(_texts(wheel, "Generator")),
            entry_points=_entry_points(archive, findings),
            stamped=_stamps(archive),
        ),
        findings,
    )


def _headers(archive: WheelArchive, name: str, findings: list[Finding]) -> Message:
    try:
        return archive.headers(name)
    except ArchiveError as error:
        member = f"{archive.dist_info}/{name}"
        findings.append(finding("metadata-unreadable", error.message, member=member))
        return Message()


def _texts(message: Message, field: str) -> tuple[str, ...]:
    """Return the values of a field, each in one line."""
    return tuple(" ".join(str(v).split()) for v in message.get_all(field, []))


def _text(message: Message, field: str) -> str:
    return next(iter(_texts(message, field)), "")


def check_specification(archive: WheelArchive) -> Iterator[Finding]:
    """Check METADATA against the core metadata specification.

    Fields, their values and number, and licence files.
    """
    name = f"{archive.dist_info}/METADATA"
    try:
        checked = Metadata.from_email(
            archive.read(name, _MAX_TEXT).decode(), validate=True
        )
    except (ArchiveError, UnicodeDecodeError):
        return  # reported where METADATA is read
    except ExceptionGroup as group:
        problems = "; ".join(str(error) for error in group.exceptions)
        yield finding(
            "metadata-invalid",
            f"it violates the core metadata specification: {problems}.",
            member=name,
        )
        return
    for file in checked.license_files or ():
        if not _has_license(archive, file):
            yield finding(
                "metadata-invalid",
                f"License-File is {file}, which the wheel lacks.",
                member=name,
            )


def check_wheel_fields(wheel: Message, member: str) -> Iterator[Finding]:
    """Check the fields of WHEEL without which installers refuse a wheel.

    Args:
        wheel: content of WHEEL; empty if it cannot be read, which is reported where it
            is read.
    """
    for field, allowed in _WHEEL_FIELDS.items() if wheel else ():
        values = _texts(wheel, field)
        if len(values) != 1 or values[0].lower() not in allowed:
            text = (
                f"WHEEL has {field} {', '.join(values) or '(nothing)'}, not"
                f" {' or '.join(allowed)}."
            )
            yield finding("metadata-invalid", text, member=member)


def _license_files(archive: WheelArchive, declared: tuple[str, ...]) -> tuple[str, ...]:
    """Return existing License-File values (PEP 639), else files named like a licence."""
    there = tuple(name for name in declared if _has_license(archive, name))
    if there:
        return there
    names = []
    for member in archive.members:
        folder, _, path = member.name.partition("/")
        if folder == archive.dist_info and _LICENSE.match(path):
            names.append(path.rpartition("/")[2])
    return tuple(names)


def _has_license(archive: WheelArchive, name: str) -> bool:
    folder = archive.dist_info
    return f"{folder}/licenses/{name}" in archive or f"{folder}/{name}" in archive


def _entry_points(
    archive: WheelArchive, findings: list[Finding]
) -> dict[str, dict[str, str]]:
    """Return the groups of entry_points.txt (entry points specification).

    Empty without that file.
    """
    name = f"{archive.dist_info}/entry_points.txt"
    if name not in archive:
        return {}
    parser = configparser.ConfigParser(
        delimiters=("=",), interpolation=None, strict=True
    )
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(archive.read(name, _MAX_TEXT).decode())
    except (ArchiveError, UnicodeDecodeError, configparser.Error) as error:
        findings.append(
            finding(
                "entry-point-broken", f"the file cannot be read: {error}", member=name
            )
        )
        return {}
    return {group: dict(parser[group]) for group in parser.sections()}


def _stamps(archive: WheelArchive) -> dict[str, str]:
    """Return the `_release_version` of each version.py that defines it; "" if the value is None."""
    stamps: dict[str, str] = {}
    for member in archive.members:
        if not member.name.endswith("/version.py") or member.size > _MAX_TEXT:
            continue
        try:
            match = _STAMP.search(archive.read(member.name).decode())
        except (ArchiveError, UnicodeDecodeError):
            continue  # RECORD and CRC checks report a damaged member
        if match:
            stamps[member.name] = match["version"] or ""
    return stamps


JAX_ROCM = re.compile(r"jax-rocm(?P<major>\d+)-(?P<kind>pjrt|plugin)")
"""Normalized names of JAX's ROCm wheels."""

SIZE_BUDGET = 100 << 20
"""Maximum size in bytes of a file on the public package index, unless raised."""

_ROCM_LIBRARIES = (
    "hipblas",
    "hipfft",
    "hipsolver",
    "hipsparse",
    "hipsparselt",
    "miopen-hip",
    "rccl",
    "rocm-device-libs",
    "rocm-hip-runtime",
    "rocm-hip-runtime-devel",
    "rocm-language-runtime",
    "rocm-llvm",
)
_JAX = frozenset({"jax", "jaxlib"})
_UNINSTALLABLE = frozenset(f"amd-{name}-instinct" for name in _ROCM_LIBRARIES)
"""Normalized names of distributions that published extras require but no index has."""

_ROCM_IN_SUMMARY = re.compile(r"\bROCm[:\s]\s*([\w.+]+)")


def check_identity(
    meta: WheelMetadata, project: str, version: str, tags: Collection[str]
) -> Iterator[Finding]:
    """Check that file name, METADATA and WHEEL agree (PEP 427, PEP 491)."""
    if canonicalize_name(meta.name) != project:
        yield finding(
            "metadata-mismatch",
            f"METADATA has Name {meta.name or '(nothing)'}, but the file name"
            f" {project}.",
        )
    if _version(meta.version) is None or _version(meta.version) != _version(version):
        version_text = meta.version or "(nothing)"
        yield finding(
            "metadata-mismatch",
            f"METADATA has Version {version_text}, but the file name {version}.",
        )
    try:
        accepted = SpecifierSet(meta.requires_python)
    except InvalidSpecifier:  # `check_specification` reports it
        accepted = SpecifierSet()
    pythons = {
        f"3.{python[3:]}"
        for tag in tags
        if (python := tag.partition("-")[0]).startswith("cp3")
    }
    if pythons and not any(python in accepted for python in pythons):
        text = (
            f"Requires-Python is {meta.requires_python}, but the wheel is for Python"
            f" {' '.join(sorted(pythons))}."
        )
        yield finding("requires-python-wrong", text)
    if set(meta.tags) != set(tags):
        yield finding(
            "tag-mismatch",
            f"WHEEL has {' '.join(sorted(meta.tags)) or '(nothing)'}, but the file name"
            f" {' '.join(sorted(tags))}.",
        )


def check_description(
    meta: WheelMetadata, rocm: Collection[str], *, has_elf: bool
) -> Iterator[Finding]:
    """Check the fields that installers, licence checks and people read.

    Args:
        rocm: ROCm versions that compiled the wheel's device code; empty if unknown.
        has_elf: True if the wheel contains libraries.
    """
    summary_rocm = rocm_in_summary(meta.summary)
    if not summary_rocm and JAX_ROCM.fullmatch(canonicalize_name(meta.name)):
        yield finding(
            "summary-rocm-unknown", f"Summary names no ROCm version: {meta.summary!r}."
        )
    elif (
        summary_rocm
        and rocm
        and not any(same_release(summary_rocm, built) for built in rocm)
    ):
        text = (
            f"Summary names ROCm {summary_rocm}, but the device code was compiled with"
            f" {' '.join(rocm)}."
        )
        yield finding("summary-rocm-wrong", text)
    if not meta.requires_python:
        yield finding(
            "requires-python-missing", "pip may choose the wheel for any Python."
        )
    if not meta.license_files:
        yield finding(
            "license-missing",
            "the wheel has no licence text; METADATA names"
            f" {meta.license or 'no licence'}.",
        )
    if meta.purelib and has_elf:
        yield finding(
            "purelib-with-elf",
            "WHEEL has `Root-Is-Purelib: true`, but the wheel has libraries.",
        )


def rocm_in_summary(summary: str) -> str:
    """Return the ROCm version in a Summary, such as `(ROCm:7.14.0)`, "" without one."""
    return next(filter(_version, _ROCM_IN_SUMMARY.findall(summary)), "")


def check_versions(meta: WheelMetadata) -> Iterator[Finding]:
    """Check that version.py files are stamped with METADATA's version."""
    for path, stamp in meta.stamped.items():
        if not stamp:
            yield finding(
                "version-unstamped",
                "_release_version is None, so the version depends on a date or git.",
                member=path,
            )
        elif meta.version and _version(stamp) != _version(meta.version):
            text = (
                f"_release_version is {stamp}, but METADATA has Version {meta.version}."
            )
            yield finding("version-stale", text, member=path)


def check_requirements(meta: WheelMetadata) -> Iterator[Finding]:
    """Check the pins between plugin, pjrt and jaxlib, and report uninstallable extras."""
    requirements = []
    for line in meta.requires_dist:
        try:
            requirements.append(Requirement(line))
        except InvalidRequirement:
            text = f"Requires-Dist {line!r} is not a requirement (PEP 508)."
            yield finding("metadata-mismatch", text)
    if direct := [requirement.name for requirement in requirements if requirement.url]:
        text = f"Requires-Dist takes {some(direct)} from a URL."
        yield finding("requirement-direct", text)
    match = JAX_ROCM.fullmatch(canonicalize_name(meta.name))
    if match:
        yield from _jax_requirements(meta, requirements, match)
    for extra in meta.extras:
        names = [canonicalize_name(r.name) for r in requirements if _in_extra(r, extra)]
        dead = [name for name in names if name in _UNINSTALLABLE]
        if dead:
            yield finding(
                "extra-uninstallable",
                f"[{extra}] requires {len(dead)} distributions that no index has, such"
                f" as {dead[0]}.",
            )


def _jax_requirements(
    meta: WheelMetadata, requirements: Iterable[Requirement], match: re.Match[str]
) -> Iterator[Finding]:
    """Check the requirements of a pjrt or plugin wheel."""
    always: dict[str, Requirement] = {}
    # A marker may exclude every machine of the wheel.
    marked: dict[str, Requirement] = {}
    others = set()
    for requirement in requirements:
        name = canonicalize_name(requirement.name)
        if requirement.marker is None:
            always[name] = requirement
        elif "extra" not in str(requirement.marker):
            marked.setdefault(name, requirement)
        is_jax = name in _JAX or JAX_ROCM.fullmatch(name)
        if not is_jax and not any(_in_extra(requirement, e) for e in meta.extras):
            others.add(name)
    if others:
        text = f"the wheel requires {some(sorted(others))}."
        yield finding("requirement-unexpected", text)
    if _JAX.isdisjoint(always):
        yield finding(
            "jaxlib-unpinned",
            "the wheel accepts every jaxlib, even one with another PJRT API.",
        )
    for project in sorted(_JAX & marked.keys()):
        text = f"the wheel requires {marked[project]}, which a marker can exclude."
        yield finding("jaxlib-unpinned", text)
    pjrt = f"jax-rocm{match['major']}-pjrt"
    if pjrt in marked:
        text = f"the plugin requires {marked[pjrt]}, which a marker can exclude."
        yield finding("pin-stale", text)
    elif match["kind"] == "plugin":
        yield from _pjrt_pin(always.get(pjrt), match["major"], meta.version)


def _pjrt_pin(
    requirement: Requirement | None, major: str, version: str
) -> Iterator[Finding]:
    """Check that a plugin requires its pjrt wheel at exactly the plugin's own version."""
    if requirement is None:
        yield finding(
            "pin-missing", f"METADATA has no Requires-Dist for jax-rocm{major}-pjrt."
        )
    elif not requirement.specifier.contains(version, prereleases=True):
        yield finding(
            "pin-stale",
            f"the plugin requires {requirement}, but has version {version}.",
        )
    elif {(s.operator, _version(s.version)) for s in requirement.specifier} != {
        ("==", _version(version))
    }:
        yield finding(
            "pin-inexact",
            f"the plugin requires {requirement} instead of exactly its own version"
            f" {version}.",
        )


def check_entry_points(
    meta: WheelMetadata, files: Collection[str]
) -> Iterator[Finding]:
    """Check that JAX can discover a pjrt wheel and that entry points name its modules."""
    match = JAX_ROCM.fullmatch(canonicalize_name(meta.name))
    if match and match["kind"] == "pjrt" and not meta.entry_points.get("jax_plugins"):
        yield finding(
            "entry-point-missing",
            "the wheel has no entry point in the group jax_plugins.",
        )
    if match and (others := sorted(meta.entry_points.keys() - {"jax_plugins"})):
        yield finding(
            "entry-point-unexpected",
            f"the wheel has entry points in the group {some(others)}.",
        )
    installed = {re.sub(r"^[^/]+\.data/(pure|plat)lib/", "", name) for name in files}
    for group, entries in meta.entry_points.items():
        for name, reference in entries.items():
            module = reference.partition(":")[0].partition("[")[0].strip()
            if not _has_module(module, installed):
                yield finding(
                    "entry-point-broken",
                    f"[{group}] {name} = {reference}: the wheel has no module"
                    f" {module}.",
                )
            elif (
                match and group == "jax_plugins" and reference != f"jax_plugins.{name}"
            ):
                # jax imports each value as a module, and finds the packages in its
                # namespace by name.
                text = (
                    f"[{group}] {name} = {reference} is not {name} ="
                    f" jax_plugins.{name}."
                )
                yield finding("entry-point-unexpected", text)


def _has_module(module: str, installed: Iterable[str]) -> bool:
    path = re.escape(module.replace(".", "/"))
    pattern = re.compile(rf"{path}(/__init__)?\.(py|pyc|so|[\w-]+\.so)")
    return bool(module) and any(pattern.fullmatch(name) for name in installed)


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def same_release(first: str, second: str) -> bool:
    """Return whether two versions have the same first two numbers; invalid versions count as equal.

    The third number is ignored, since compilers do not always report it.
    """
    one = _version(first)
    other = _version(second)
    return one is None or other is None or one.release[:2] == other.release[:2]


def _in_extra(requirement: Requirement, extra: str) -> bool:
    """Return whether a requirement applies only if an extra is requested."""
    marker = requirement.marker
    if marker is None or "extra" not in str(marker):
        return False
    return marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""})
