"""The bill of materials of a set as CycloneDX 1.6 JSON.

Its wheels, their inputs and their dependencies.

Equal sets give equal bytes: the serial number is derived from the content, and there is
no timestamp.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ci_build.rocm.lock import RocmLock
from ci_build.rocm.rocm_request import DnfRepository, PipIndex, parse_source
from core.model import InputFile, RocmPackage, Wheel, WheelSet
from core.pip import Resolved

_NAMESPACE = "jax-rocm-release"
"""Namespace of our properties, as CycloneDX requires."""

Part = dict[str, Any]
"""An object of the bill, such as a component; objects without values are omitted."""


def sbom(
    wheel_set: WheelSet,
    resolved: Mapping[str, Sequence[Resolved]],
    lock: RocmLock | None = None,
) -> str:
    """Return the bill of materials of a set.

    Args:
        wheel_set: the set; its `files` are ignored.
        resolved: Python version -> pip's resolution; entries that the set replaces are
            omitted.
        lock: rocm.lock of the set; None for a set without it.
    """
    own = {wheel.name for wheel in wheel_set.wheels}
    inputs = {item.sha256: item for item in wheel_set.inputs}
    parts: dict[str, Part] = {}
    for wheel in wheel_set.wheels:
        parts[wheel.filename] = _wheel(wheel, inputs.get(wheel.source_sha256))
    for items in resolved.values():
        for item in items:
            if item.name not in own:
                reference = _reference(item.url)
                parts[item.filename] = _component(item, [reference])
    for package in wheel_set.rocm_packages:
        parts[package.filename] = _component(package, [_reference(package.url)])
    rocm = _rocm(wheel_set, lock)
    root = {
        "type": "application",
        "bom-ref": "set",
        "name": f"JAX for ROCm, {wheel_set.index}",
        "version": wheel_set.jax_version,
        "properties": [_property("targets", " ".join(wheel_set.targets))],
    }
    depends: dict[str, list[str]] = {"set": sorted(parts), rocm["bom-ref"]: []}
    depends |= {name: [] for name in parts}
    for wheel in wheel_set.wheels:
        needs = {canonicalize_name(Requirement(r).name) for r in wheel.requires_dist}
        below = [name for name, part in parts.items() if part["name"] in needs]
        if any(member.targets for member in wheel.members):
            below.append(rocm["bom-ref"])
        depends[wheel.filename] = sorted(below)
    components = [*parts.values(), rocm]
    body: Part = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": root},
        "components": sorted(components, key=lambda part: str(part["bom-ref"])),
        "dependencies": [
            _without_empty({"ref": name, "dependsOn": below})
            for name, below in sorted(depends.items())
        ],
    }
    content = json.dumps(body, sort_keys=True, ensure_ascii=False)
    body["serialNumber"] = uuid.uuid5(uuid.NAMESPACE_URL, content).urn
    return json.dumps(body, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _rocm(wheel_set: WheelSet, lock: RocmLock | None) -> Part:
    part: Part = {
        "type": "platform",
        "bom-ref": f"rocm {wheel_set.rocm_version}",
        "name": "rocm",
        "version": wheel_set.rocm_version,
    }
    if lock is not None:
        references = list(_rocm_references(lock))
        references.sort(key=lambda reference: str(reference["url"]))
        part["externalReferences"] = references
        if lock.sha256 and not lock.packages:
            part["hashes"] = [_sha256(lock.sha256)]
    return _without_empty(part)


def _rocm_references(lock: RocmLock) -> Iterator[Part]:
    """Yield references to a ROCm's packages or tarball, and to the packages' source."""
    source = parse_source(lock.source)
    if isinstance(source, DnfRepository):
        yield _reference(source.url, comment="package repository")
        for name, sha256 in lock.packages.items():
            yield _reference(name, comment=f"sha256 of the header: {sha256}")
        return
    if isinstance(source, PipIndex):
        yield _reference(source.url, comment="package index")
    for name, sha256 in lock.packages.items():
        yield _reference(lock.urls.get(name, name), sha256, comment=name)
    if lock.sha256 and not lock.packages:
        yield _reference(lock.source, lock.sha256)


def _wheel(wheel: Wheel, source: InputFile | None) -> Part:
    references = []
    if source is not None:
        comment = f"made of {source.filename}"
        if wheel.as_published:
            comment = "taken as it is"
        url = source.url or source.filename
        references.append(_reference(url, source.sha256, comment))
    properties = {}
    targets: set[str] = set()
    for member in wheel.members:
        properties[f"sha256 of {member.path}"] = member.sha256
        targets |= set(member.targets)
    if targets:
        properties["targets"] = " ".join(sorted(targets))
    part = _component(wheel, references)
    part["properties"] = [_property(*item) for item in sorted(properties.items())]
    return _without_empty(part)


def _component(
    item: Wheel | Resolved | RocmPackage, references: Sequence[Part]
) -> Part:
    name = item.project if isinstance(item, RocmPackage) else item.name
    purl = f"pkg:pypi/{name}@{quote(item.version, safe='')}"
    part = {
        "type": "library",
        "bom-ref": item.filename,
        "name": name,
        "version": item.version,
        "purl": f"{purl}?file_name={quote(item.filename)}",
        "hashes": [_sha256(item.sha256)],
        "externalReferences": list(references),
    }
    return _without_empty(part)


def _reference(url: str, sha256: str = "", comment: str = "") -> Part:
    hashes = [_sha256(sha256)] if sha256 else []
    part = {"type": "distribution", "url": url, "hashes": hashes, "comment": comment}
    return _without_empty(part)


def _without_empty(part: Part) -> Part:
    return {name: value for name, value in part.items() if value}


def _sha256(digest: str) -> Part:
    return {"alg": "SHA-256", "content": digest}


def _property(name: str, value: str) -> Part:
    return {"name": f"{_NAMESPACE}:{name}", "value": value}
