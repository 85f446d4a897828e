"""Wheels of kernel modules.

Code objects in one folder per target, libraries that launch the code, and a manifest.

Layout: `jax_aiter/_kernels/lib/lib<module>.so`;
`jax_aiter/_kernels/hsa/<gfx>[/<variant>]/<module>/*.co` with tables (`*.csv`) from
which launchers choose a kernel, and AITER's measurements in its folder `tuned`; and
`jax_aiter/_kernels/manifest.json` with the digest of each file. `kernels/kernel_recipe.py`
writes the manifest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NotRequired, TypedDict

from core.errors import ArchiveError, FormatError
from core.frozen import frozen
from core.model import Finding, GfxTarget, MemberInfo
from core.records import read_json
from wheelkit.archive.record import RecordEntry
from wheelkit.archive.wheel_archive import WheelArchive
from wheelkit.findings import finding
from wheelkit.gpu.code_check import check_code
from wheelkit.gpu.code_object import (
    HEAD_SIZE,
    code_object_problem,
    is_code_object,
    processor_of,
)

MANIFEST = "jax_aiter/_kernels/manifest.json"
_ROOT = "jax_aiter/_kernels"
_SCHEMA = 1
_OBJECT = re.compile(
    rf"{_ROOT}/hsa/(?P<gfx>gfx[0-9a-z-]+)/(?:[A-Z0-9]+/)?(?P<module>[a-z0-9_]+)/(?:[^/]+\.(?:co|csv)|tuned/[^/]+\.csv)"
)


@frozen
class PackagedModule:
    """One kernel module of the manifest.

    Attributes:
        library: path of the library inside the wheel.
        sha256: SHA-256 of the library.
        symbols: symbols of the FFI handlers that the library exports.
        objects: target -> path of a code object or table inside the wheel -> SHA-256.
        instances: regular expression that selected the generated kernels by name; empty
            if all were built.
    """

    name: str
    kind: str
    library: str
    sha256: str
    targets: tuple[str, ...]
    symbols: tuple[str, ...]
    objects: Mapping[str, Mapping[str, str]]
    instances: str = ""


@frozen
class KernelManifest:
    """Content of a wheel's manifest.json.

    Attributes:
        missing: modules that were left out of a partial wheel.
    """

    version: str
    targets: tuple[str, ...]
    modules: tuple[PackagedModule, ...]
    missing: tuple[str, ...]


def is_kernel_wheel(archive: WheelArchive) -> bool:
    """Return whether the wheel has a manifest of kernel modules."""
    return MANIFEST in archive


def read_manifest(archive: WheelArchive) -> KernelManifest:
    """Read the manifest of a wheel of kernel modules.

    Raises:
        ArchiveError: the manifest is invalid, or has an unsupported schema.
    """
    try:
        source = f"{MANIFEST} of {archive.name}"
        body = read_json(archive.read(MANIFEST), _ManifestBody, source, schema=_SCHEMA)
    except FormatError as error:
        raise ArchiveError(error.message) from error
    modules = [_module(name, entry) for name, entry in body["modules"].items()]
    return KernelManifest(
        version=body["version"],
        targets=body["targets"],
        modules=tuple(modules),
        missing=body.get("partial", ()),
    )


class _Handler(TypedDict):
    """A handler in the manifest; the payload reads its other keys."""

    symbol: str


class _ModuleBody(TypedDict):
    """A module in the manifest; the payload reads its other keys."""

    kind: str
    library: str
    sha256: str
    targets: tuple[str, ...]
    ffi: tuple[_Handler, ...]
    objects: Mapping[str, Mapping[str, str]]
    instances: NotRequired[str]


class _ManifestBody(TypedDict):
    """Content of the manifest; the payload reads its other keys."""

    version: str
    targets: tuple[str, ...]
    modules: Mapping[str, _ModuleBody]
    partial: NotRequired[tuple[str, ...]]


def _module(name: str, entry: _ModuleBody) -> PackagedModule:
    objects = {}
    for gfx, files in entry["objects"].items():
        objects[gfx] = {f"{_ROOT}/hsa/{path}": digest for path, digest in files.items()}
    return PackagedModule(
        name=name,
        kind=entry["kind"],
        library=f"{_ROOT}/{entry['library']}",
        sha256=entry["sha256"],
        targets=entry["targets"],
        symbols=tuple(ffi["symbol"] for ffi in entry["ffi"]),
        objects=objects,
        instances=entry.get("instances", ""),
    )


def code_objects(archive: WheelArchive) -> tuple[str, ...]:
    """Return the names of the members that are plain AMDGPU code objects."""
    names = []
    for member in archive.members:
        if member.name.endswith(".co"):
            try:
                head = next(iter(archive.chunks(member.name)), b"")
            except ArchiveError:
                continue  # the check of RECORD reports the damage
            if is_code_object(head):
                names.append(member.name)
    return tuple(names)


def member_infos(
    archive: WheelArchive,
    names: Iterable[str],
    record: Mapping[str, RecordEntry],
) -> tuple[MemberInfo, ...]:
    """Return the `wheels.json` entries of code objects.

    The target of each entry is read from the object's header.
    """
    infos = []
    for name in names:
        head = next(iter(archive.chunks(name)), b"")
        infos.append(
            MemberInfo(
                path=name,
                size=archive[name].size,
                sha256=record[name].sha256 or "",
                targets=tuple(filter(None, [processor_of(head)])),
                needed=(),
                symbol_versions={},
            )
        )
    return tuple(infos)


def check_kernel_wheel(
    archive: WheelArchive, exported: Mapping[str, Iterable[str]]
) -> tuple[Finding, ...]:
    """Check the kernel modules of a wheel.

    Args:
        archive: the wheel.
        exported: path of each readable library inside the wheel -> its exported
            symbols.
    """
    try:
        manifest = read_manifest(archive)
    except ArchiveError as error:
        return (finding("kernels-manifest-damaged", error.message, member=MANIFEST),)
    return tuple(_findings(archive, manifest, exported))


def _findings(
    archive: WheelArchive,
    manifest: KernelManifest,
    exported: Mapping[str, Iterable[str]],
) -> Iterator[Finding]:
    if manifest.version != archive.name.version:
        text = (
            f"the manifest has version {manifest.version}, but the wheel has version"
            f" {archive.name.version}."
        )
        yield finding("kernels-manifest-untrue", text, member=MANIFEST)
    if not manifest.modules:
        yield finding(
            "kernels-missing", "the manifest lists no kernel module.", member=MANIFEST
        )
    if manifest.missing:
        text = (
            f"the wheel was built without {', '.join(manifest.missing)}"
            " (--allow-partial)."
        )
        yield finding("kernels-partial", text, member=MANIFEST)
    for module in manifest.modules:
        if module.instances:
            text = (
                f"module {module.name} has only the kernels whose names match"
                f" {module.instances!r}."
            )
            yield finding("kernels-partial", text, member=MANIFEST)
    listed: dict[str, str] = {}
    for module in manifest.modules:
        listed[module.library] = module.sha256
        for gfx, files in module.objects.items():
            listed |= files
            yield from _misplaced(module, gfx, files)
        if module.library in exported:
            lost = sorted(set(module.symbols) - set(exported[module.library]))
            if lost:
                text = (
                    f"the library of module {module.name} does not export the handlers"
                    f" {', '.join(lost)}."
                )
                yield finding("handler-missing", text, member=module.library)
    yield from _untrue(archive, listed)
    for name in code_objects(archive):
        yield from _wrong_code(archive, name)
    for gfx in manifest.targets:
        yield from check_target(manifest, gfx)


def check_target(manifest: KernelManifest, gfx: str) -> Iterator[Finding]:
    """Check that each co-launcher or portable module has code for its listed targets."""
    for module in manifest.modules:
        coded = any(path.endswith(".co") for path in module.objects.get(gfx, ()))
        if (
            gfx in module.targets
            and not coded
            and module.kind in ("co-launcher", "portable")
        ):
            yield finding(
                "target-missing",
                f"{module.name} has no code object for {gfx}.",
                member=module.library,
            )


def _misplaced(
    module: PackagedModule, gfx: str, files: Mapping[str, str]
) -> Iterator[Finding]:
    for path in files:
        place = _OBJECT.fullmatch(path)
        if place is None or (place["gfx"], place["module"]) != (gfx, module.name):
            text = (
                f"the manifest lists the file for module {module.name} on {gfx}, but"
                " the file is in another folder."
            )
            yield finding("kernels-manifest-untrue", text, member=path)


def _untrue(archive: WheelArchive, listed: Mapping[str, str]) -> Iterator[Finding]:
    """Yield findings on differences between the manifest and the files."""
    present = {
        m.name
        for m in archive.members
        if m.name.startswith(f"{_ROOT}/") and m.name != MANIFEST
    }
    for name in sorted(listed.keys() - present):
        yield finding(
            "kernels-missing",
            "the manifest lists the file, but the wheel lacks it.",
            member=name,
        )
    for name in sorted(present - listed.keys()):
        yield finding(
            "kernels-manifest-untrue",
            "the manifest does not list the file.",
            member=name,
        )
    for name in sorted(present & listed.keys()):
        try:
            digest = archive.digest(name)
        except ArchiveError:
            continue  # the check of RECORD reports the damage
        if digest != listed[name]:
            yield finding(
                "kernels-manifest-untrue",
                f"the manifest lists another sha256: {listed[name]}.",
                member=name,
            )


def _wrong_code(archive: WheelArchive, name: str) -> Iterator[Finding]:
    """Check that a code object is whole, matches the target of its folder and has kernels."""
    place = _OBJECT.fullmatch(name)
    try:
        data = archive.read(name)
    except ArchiveError as error:
        yield finding("code-object-wrong", error.message, member=name)
        return
    target = GfxTarget(processor=place["gfx"] if place else processor_of(data))
    clause = code_object_problem(data[:HEAD_SIZE], target)
    if clause:
        text = f"the file in the folder of {target} {clause}."
        yield finding("code-object-wrong", text, member=name)
        return
    check = check_code(data, target)
    for kind, text in {
        problem.code: problem.text for problem in reversed(check.problems)
    }.items():
        yield finding(kind, f"the code object {text}.", member=name)
    if not (check.kernels or check.problems):
        yield finding(
            "code-object-wrong", "the code object has no kernels.", member=name
        )
