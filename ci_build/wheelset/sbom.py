"""The bill of materials of a set as CycloneDX 1.6 JSON.

Its wheels, their inputs and their dependencies.

Equal sets give equal bytes: the serial number is derived from the content, and there is
no timestamp.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from cyclonedx.model import (
    ExternalReference,
    ExternalReferenceType,
    HashAlgorithm,
    HashType,
    Property,
    XsUri,
)
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ci_build.rocm.lock import RocmLock
from ci_build.rocm.rocm_request import DnfRepository, PipIndex, parse_source
from core.model import InputFile, Wheel, WheelSet
from core.pip import Resolved

_NAMESPACE = "jax-rocm-release"
"""Namespace of our properties, as CycloneDX requires."""


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
    wheels = [
        _wheel(wheel, inputs.get(wheel.source_sha256)) for wheel in wheel_set.wheels
    ]
    foreign = {}
    for item in chain.from_iterable(resolved.values()):
        if item.name not in own:
            foreign[item.filename] = item
    rocm = Component(
        name="rocm",
        version=wheel_set.rocm_version,
        type=ComponentType.PLATFORM,
        bom_ref=f"rocm {wheel_set.rocm_version}",
        hashes=(
            [_sha256(lock.sha256)] if lock and lock.sha256 and not lock.packages else []
        ),
        external_references=_rocm_references(lock) if lock else [],
    )
    parts = [
        *wheels,
        *(_component(item, [_reference(item.url)]) for item in foreign.values()),
    ]
    root = Component(
        name=f"JAX for ROCm, {wheel_set.index}",
        version=wheel_set.jax_version,
        type=ComponentType.APPLICATION,
        bom_ref="set",
        properties=[_property("targets", " ".join(wheel_set.targets))],
    )
    bom = Bom(components=[*parts, rocm], metadata=BomMetaData(component=root))
    bom.register_dependency(root, parts)
    for wheel, component in zip(wheel_set.wheels, wheels, strict=True):
        on_rocm = [rocm] if wheel.targets else []
        bom.register_dependency(component, [*_needed(wheel, parts), *on_rocm])
    return _reproducible(
        make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string()
    )


def _reproducible(text: str) -> str:
    """Return the bill without a timestamp, and with a serial number derived from its content."""
    body = json.loads(text)
    body["metadata"].pop("timestamp", None)
    body.pop("serialNumber", None)
    content = json.dumps(body, sort_keys=True, ensure_ascii=False)
    body["serialNumber"] = uuid.uuid5(uuid.NAMESPACE_URL, content).urn
    return json.dumps(body, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _needed(wheel: Wheel, parts: Iterable[Component]) -> Iterator[Component]:
    names = {canonicalize_name(Requirement(text).name) for text in wheel.requires_dist}
    return (part for part in parts if part.name in names)


def _wheel(wheel: Wheel, source: InputFile | None) -> Component:
    targets = wheel.targets
    references = []
    if source is not None:
        comment = (
            "taken as it is" if wheel.as_published else f"made of {source.filename}"
        )
        references.append(
            _reference(
                source.url or source.filename,
                hashes=[_sha256(source.sha256)],
                comment=comment,
            )
        )
    properties = [
        *([_property("targets", " ".join(targets))] if targets else []),
        *(
            _property(f"sha256 of {member.path}", member.sha256)
            for member in wheel.members
        ),
    ]
    return _component(wheel, references, properties)


def _rocm_references(lock: RocmLock) -> Iterator[ExternalReference]:
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
        yield _reference(name, hashes=[_sha256(sha256)], comment=name)
    if lock.sha256 and not lock.packages:
        yield _reference(lock.source, hashes=[_sha256(lock.sha256)])


def _component(
    item: Wheel | Resolved,
    references: Sequence[ExternalReference],
    properties: Sequence[Property] = (),
) -> Component:
    return Component(
        name=item.name,
        version=item.version,
        bom_ref=item.filename,
        purl=PackageURL(
            "pypi", None, item.name, item.version, {"file_name": item.filename}
        ),
        hashes=[_sha256(item.sha256)],
        external_references=references,
        properties=properties,
    )


def _reference(url: str, **more: Any) -> ExternalReference:  # noqa: ANN401 - passed to the library
    return ExternalReference(
        type=ExternalReferenceType.DISTRIBUTION, url=XsUri(url), **more
    )


def _sha256(digest: str) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=digest)


def _property(name: str, value: str) -> Property:
    return Property(name=f"{_NAMESPACE}:{name}", value=value)
