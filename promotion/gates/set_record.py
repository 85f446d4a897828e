"""Comparison of wheels.json and of the files beside the wheels with the wheels of a set.

A set's digest covers wheels.json and these files, but says nothing about their truth:
policies, index pages, installers and `set reproduce` rely on them.
"""

from __future__ import annotations

import functools
import hashlib
import json
import posixpath
import re
import tomllib
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from core.model import (
    CONSTRAINTS,
    PYLOCK,
    ROCM_LOCK,
    SBOM,
    WHEELS_JSON,
    Finding,
    GfxTarget,
    MemberInfo,
    Payload,
    Wheel,
    WheelSet,
    to_json,
)
from core.targets import MULTI_ARCH, family_of
from promotion.gates.common.gate_context import error
from wheelkit.inspect.inspection_model import WheelReport, member_infos
from wheelkit.inspect.metadata_rules import JAX_ROCM
from wheelkit.inspect.proven_rocm import compiler_marks

REBUILD = "Build and stage the set again."
_BUILD_INFO = "/build_info.json"
_JAX = ("jax", "jaxlib")
"""Projects that the set has or pins."""
_DIGEST_IN_URL = re.compile(
    r"/packages/([0-9a-f]{2})/([0-9a-f]{2})/([0-9a-f]{60})/[^/]+$"
)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MOST_BYTES = 4 << 20
_MOST_NAMED = 4
_Row = tuple[str, str, str, str]
"""Project, version, file name and SHA-256; the last two may be empty."""
_Comparison = tuple[str, object, object]
"""Name of a field, the wheel's value and the recorded one."""


def read_build_info(wheel: BinaryIO) -> Mapping[str, Any]:
    """Return the build information in a pjrt or plugin wheel of this program.

    Empty for all other wheels, and for damaged ones: inspection reports damaged
    members, and the gate load unreadable information.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(_BUILD_INFO)]
            if len(names) != 1 or archive.getinfo(names[0]).file_size > _MOST_BYTES:
                return {}
            body = json.loads(archive.read(names[0]))
    except (
        zipfile.BadZipFile,
        zlib.error,
        OSError,
        EOFError,
        NotImplementedError,
        RuntimeError,
        ValueError,
    ):
        return {}
    return body if isinstance(body, dict) else {}


def wheel_differences(
    report: WheelReport, wheel: Wheel, info: Mapping[str, Any]
) -> Iterator[Finding]:
    """Compare the entry of a wheel in wheels.json with the wheel.

    Args:
        info: the wheel's build information; empty if it has none.
    """
    meta = report.metadata
    if meta is not None:
        recorded_needs = [" ".join(text.split()) for text in wheel.requires_dist]
        rows: list[_Comparison] = [
            ("name", report.project, wheel.name),
            ("version", meta.version, wheel.version),
            ("tags", sorted(report.tags), sorted(wheel.tags)),
            ("size", report.size, wheel.size),
            ("requires_python", meta.requires_python, wheel.requires_python),
            ("requires_dist", list(meta.requires_dist), recorded_needs),
        ]
        yield from _untrue_values(wheel.filename, rows)
    # An adopted wheel is its own source; its build information tells of the build
    # before.
    origins = None if wheel.source_sha256 == report.sha256 else info.get("inputs")
    if isinstance(origins, list) and len(origins) == 1 and isinstance(origins[0], dict):
        source = origins[0]
        rows = [
            ("source_sha256", source.get("sha256"), wheel.source_sha256),
            ("source_size", source.get("size"), wheel.source_size),
        ]
        yield from _untrue_values(wheel.filename, rows)
    yield from _member_differences(report, wheel)


def url_differences(wheel_set: WheelSet, wheel: Wheel, path: Path) -> Iterator[Finding]:
    """Compare a wheel that was taken unchanged with the digest in its URL among the inputs.

    The package index and its mirrors store each file below its BLAKE2b-256 digest;
    other URLs have none.
    """
    for item in wheel_set.inputs:
        match = _DIGEST_IN_URL.search(item.url)
        if not (match and wheel.as_published and item.sha256 == wheel.sha256):
            continue
        new_hash = functools.partial(hashlib.blake2b, digest_size=32)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, new_hash).hexdigest()
        if digest != "".join(match.groups()):
            text = (
                f"{wheel.filename} is not the file of its URL {item.url}, whose digest"
                " differs."
            )
            remedy = "Download the wheel again, and build and stage the set again."
            yield error("source-differs", text, remedy)


def set_differences(
    wheel_set: WheelSet,
    reports: Sequence[WheelReport],
    infos: Sequence[Mapping[str, Any]],
) -> Iterator[Finding]:
    """Compare the versions and inputs of a set in wheels.json with its wheels.

    Args:
        infos: the build information of each wheel, in the order of the reports.
    """
    minors: dict[str, set[int]] = defaultdict(set)
    for report in reports:
        for tag in report.tags:
            if match := re.match(r"cp3(\d+)-", tag):
                minors[report.project].add(int(match[1]))
    recorded = ", ".join(wheel_set.python_versions)
    for project, numbers in minors.items():
        pythons = ", ".join(f"3.{minor}" for minor in sorted(numbers))
        if pythons != recorded:
            text = f"{project} has wheels for {pythons}, not for {recorded}"
            yield _untrue("python_versions", text)
    own = [
        (report, info)
        for report, info in zip(reports, infos, strict=True)
        if JAX_ROCM.fullmatch(report.project)
    ]
    for report, info in own:
        yield from _version_differences(wheel_set, report, info)
    jax = wheel_set.jax_version
    pin = wheel_set.pins.get("jax", jax)
    names = {*wheel_set.pins, *(wheel.name for wheel in wheel_set.wheels)}
    if _base(pin) != _base(jax):
        yield _untrue("pins", f"jax is {pin}, but jax_version is {jax}")
    if own and "jax" not in names:
        yield _untrue("pins", "jax, which the gates install with the set, is missing")
    family = family_of(map(GfxTarget.parse, wheel_set.targets))
    if wheel_set.index not in (MULTI_ARCH, family):
        text = (
            f"it is {wheel_set.index}, but the index of {', '.join(wheel_set.targets)}"
            f" is {family}"
        )
        yield _untrue("index", text)
    yield from _pin_differences(wheel_set)
    yield from _lock_differences(wheel_set, own)
    for clause in malformed_values(wheel_set):
        text = f"wheels.json has a value of another form: {clause}."
        yield error("wheels-json-untrue", text, REBUILD)
    made = {report.filename for report, info in own if info.get("inputs")}
    yield from _input_differences(wheel_set, made)


def _input_differences(wheel_set: WheelSet, made: Collection[str]) -> Iterator[Finding]:
    """Compare the sources of the wheels with the inputs of the set.

    Args:
        made: file names of wheels that name their source.
    """
    inputs = {(item.sha256, item.size) for item in wheel_set.inputs}
    downloaded = {item.sha256 for item in wheel_set.inputs if item.url}
    from_source = wheel_set.request.get("payload") == Payload.SOURCE
    for wheel in wheel_set.wheels:
        name = wheel.filename
        own = from_source and JAX_ROCM.fullmatch(wheel.name)
        if own and wheel.source_sha256 in downloaded:
            text = f"its payload is source, but {name} was made from a downloaded wheel"
            yield _untrue("request", text)
        unchanged = wheel.source_sha256 == wheel.sha256
        if not inputs and (unchanged or name not in made):
            continue  # the set was adopted
        if (wheel.source_sha256, wheel.source_size) not in inputs:
            yield _untrue("inputs", f"the source of {name} is not among them")


def _lock_differences(
    wheel_set: WheelSet, own: Sequence[tuple[WheelReport, Mapping[str, Any]]]
) -> Iterator[Finding]:
    """Compare the digest of rocm.lock with those in the request and in the wheels."""
    lock = wheel_set.files.get(ROCM_LOCK)
    if lock is None:
        return
    sources = {WHEELS_JSON: wheel_set.request.get("source")}
    sources |= {report.filename: info.get("sources") for report, info in own}
    for name, recorded in sources.items():
        digest = recorded.get("rocm") if isinstance(recorded, Mapping) else None
        if digest != lock:
            text = (
                f"its sha256 is {lock}, but {name} was made with a ROCm whose lock has"
                f" {digest}"
            )
            yield _untrue(ROCM_LOCK, text)


def malformed_values(wheel_set: WheelSet) -> Iterator[str]:
    """Yield a clause for each value of wheels.json in an unexpected form."""
    digests = {f"files of {name}": sha256 for name, sha256 in wheel_set.files.items()}
    for wheel in wheel_set.wheels:
        digests[f"{wheel.filename} sha256"] = wheel.sha256
        digests[f"{wheel.filename} source_sha256"] = wheel.source_sha256
    for item in wheel_set.inputs:
        digests[f"inputs {item.filename} sha256"] = item.sha256
        is_wheel = item.url and item.filename.endswith(".whl")
        if is_wheel and not _is_url_of(item.url, item.filename):
            yield f"url of {item.filename} among the inputs is {item.url!r}"
    for name, digest in digests.items():
        if not _SHA256.fullmatch(digest):
            yield f"{name} is {digest!r}, no SHA-256"
    for name, version in wheel_set.pins.items():
        if name != canonicalize_name(name) or not _is_version(version):
            yield f"pins has {name!r}: {version!r}"


def _is_url_of(url: str, filename: str) -> bool:
    path = unquote(urlsplit(url).path)
    return url.startswith(("https://", "http://", "file://")) and path.endswith(
        f"/{filename}"
    )


def _is_version(text: str) -> bool:
    try:
        return str(Version(text)) == text
    except InvalidVersion:
        return False


def file_differences(
    wheel_set: WheelSet, read: Callable[[str], bytes]
) -> Iterator[Finding]:
    """Compare constraints, lock and bill of materials with the set's wheels and pins.

    Args:
        read: returns the content of a file of the set.
    """
    versions = dict(wheel_set.pins)
    versions |= {wheel.name: wheel.version for wheel in wheel_set.wheels}
    hashes = {wheel.filename: wheel.sha256 for wheel in wheel_set.wheels}
    readers = {CONSTRAINTS: _constraints, PYLOCK: _locked, SBOM: _components}
    for name, reader in readers.items():
        if name not in wheel_set.files:
            continue
        try:
            text = read(name).decode()
            rows = list(reader(text))
            wrong = _excluded(text, wheel_set.python_versions) if name == PYLOCK else []
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            text = f"{name} of the set cannot be read: {problem}."
            yield error("set-file-untrue", text, REBUILD)
            continue
        for project, version, filename, sha256 in rows:
            expected = versions.get(project, version)
            if version != expected:
                wrong.append(f"{project} {version}, not {expected}")
            expected = hashes.get(filename, sha256)
            if sha256 != expected:
                wrong.append(f"sha256 {sha256} of {filename}, not {expected}")
        absent = versions.keys() - {row[0] for row in rows}
        wrong += [f"no {project}" for project in sorted(absent)]
        if wrong:
            names = ", ".join(wrong[:_MOST_NAMED])
            yield error("set-file-untrue", f"{name} of the set has {names}.", REBUILD)


def debug_differences(
    wheel_set: WheelSet, reports: Sequence[WheelReport], crc32: Callable[[str], int]
) -> Iterator[Finding]:
    """Compare the debug files of each wheel with the libraries that refer to them.

    Other wheels yield nothing.

    Args:
        crc32: returns the CRC-32 of a file of the set.
    """
    for report in reports:
        folder = f"debug/{report.filename.removesuffix('.whl')}/"
        held = {name for name in wheel_set.files if name.startswith(folder)}
        for elf in report.elfs if held else ():
            if not elf.debug_file:
                continue
            name = f"{folder}{posixpath.dirname(elf.path)}/{elf.debug_file}"
            problem = ""
            if name not in held:
                problem = "is missing"
            elif crc32(name) != elf.debug_crc32:
                problem = "is of another build"
            held.discard(name)
            if problem:
                text = (
                    f"{report.filename}: {name} {problem}: {elf.path} needs the debug"
                    f" file {elf.debug_crc32:08x}."
                )
                yield error("debug-file-wrong", text, REBUILD, member=elf.path)
        for name in sorted(held):
            text = f"{name} belongs to no library of {report.filename}."
            yield error("debug-file-wrong", text, REBUILD)


def _excluded(lock: str, pythons: Sequence[str]) -> list[str]:
    """Return a clause for each Python of a set for which a lock cannot be installed."""
    table = tomllib.loads(lock)
    accepted = SpecifierSet(table.get("requires-python", ""))
    wrong = [
        f"requires-python {accepted}, which excludes {python}"
        for python in pythons
        if python not in accepted
    ]
    for package in table["packages"]:
        if "marker" in package:
            continue
        for python in pythons:
            if not any(_serves(wheel["name"], python) for wheel in package["wheels"]):
                wrong.append(f"no wheel of {package['name']} for Python {python}")
    return wrong


def _serves(filename: str, python: str) -> bool:
    """Report whether a wheel is for a version of CPython, by its tags."""
    minor = int(python[2:])
    for tag in parse_wheel_filename(filename)[3]:
        own = tag.interpreter.removeprefix("cp3")
        if tag.interpreter.startswith("py") or own == str(minor):
            return True
        if tag.abi == "abi3" and own.isdecimal() and int(own) <= minor:
            return True
    return False


def _constraints(text: str) -> Iterator[_Row]:
    for line in text.split():
        name, _, version = line.partition("==")
        yield name, version, "", ""


def _locked(text: str) -> Iterator[_Row]:
    for package in tomllib.loads(text)["packages"]:
        for wheel in package["wheels"]:
            yield (
                package["name"],
                package["version"],
                wheel["name"],
                wheel["hashes"]["sha256"],
            )


def _components(text: str) -> Iterator[_Row]:
    for part in json.loads(text)["components"]:
        digests = [row["content"] for row in part.get("hashes", ())]
        yield part["name"], part["version"], part["bom-ref"], "".join(digests[:1])


def _pin_differences(wheel_set: WheelSet) -> Iterator[Finding]:
    """Compare the wheels and pins of a set with what its wheels require.

    Other projects, such as numpy, come from the user's index.
    """
    own = {wheel.name for wheel in wheel_set.wheels}
    for wheel in wheel_set.wheels:
        for requirement in map(Requirement, wheel.requires_dist):
            name = canonicalize_name(requirement.name)
            pin = wheel_set.pins.get(name)
            if requirement.marker is not None:
                continue
            if pin is None and name in _JAX and name not in own:
                text = (
                    f"{wheel.filename} requires {requirement}, which the set neither"
                    " has nor pins"
                )
                yield _untrue("pins", text)
            elif pin and not requirement.specifier.contains(pin, prereleases=True):
                text = (
                    f"{requirement.name} is {pin}, but {wheel.filename} requires"
                    f" {requirement}"
                )
                yield _untrue("pins", text)


def _version_differences(
    wheel_set: WheelSet, report: WheelReport, info: Mapping[str, Any]
) -> Iterator[Finding]:
    """Compare the versions of JAX and ROCm of a set with those of a pjrt or plugin wheel."""
    if _base(report.version) != _base(wheel_set.jax_version):
        text = (
            f"it is {wheel_set.jax_version}, but {report.filename} is for jax"
            f" {_base(report.version)}"
        )
        yield _untrue("jax_version", text)
    _, _, label = report.version.partition("+rocm")
    built = str(info.get("rocm_version", "")) or label
    if built and built != wheel_set.rocm_version:
        text = (
            f"it is {wheel_set.rocm_version}, but {report.filename} is for ROCm {built}"
        )
        yield _untrue("rocm_version", text)
    recorded = _base(wheel_set.rocm_version)
    for mark in compiler_marks(report):
        if recorded not in mark.versions:
            text = f"it is {wheel_set.rocm_version}, but {mark.text}"
            yield _untrue("rocm_version", text)
            return


def _member_differences(report: WheelReport, wheel: Wheel) -> Iterator[Finding]:
    """Compare the libraries of a wheel with their entries in wheels.json."""
    actual = {member.path: _fields(member) for member in member_infos(report)}
    recorded = {member.path: _fields(member) for member in wheel.members}
    for path in sorted(actual.keys() | recorded.keys()):
        if path not in actual:
            differences = "the wheel has no such library"
        elif path not in recorded:
            differences = "wheels.json does not list it"
        else:
            listed = recorded[path]
            rows = [(key, value, listed[key]) for key, value in actual[path].items()]
            differences = _differences(rows)
        if differences:
            text = (
                f"{wheel.filename}: wheels.json is wrong about {path}: {differences}."
            )
            yield error("wheels-json-untrue", text, REBUILD, member=path)


def _fields(member: MemberInfo) -> dict[str, Any]:
    """Return the fields of a library's entry, with sorted lists."""
    values = {}
    for name, value in to_json(member).items():
        values[name] = sorted(value) if isinstance(value, list) else value
    return values


def _differences(rows: Iterable[_Comparison]) -> str:
    return "; ".join(
        f"{name} is {has!r}, not {listed!r}"
        for name, has, listed in rows
        if has != listed
    )


def _untrue_values(what: str, rows: Iterable[_Comparison]) -> Iterator[Finding]:
    if differences := _differences(rows):
        yield _untrue(what, differences)


def _untrue(what: str, differences: str) -> Finding:
    text = f"wheels.json is wrong about {what}: {differences}."
    return error("wheels-json-untrue", text, REBUILD)


def _base(version: str) -> str:
    """Return a version without post release, pre-release and label; other text as it is."""
    try:
        return Version(version).base_version
    except InvalidVersion:
        return version
