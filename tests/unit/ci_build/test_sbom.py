"""The bill of materials: valid by CycloneDX's own schema, and complete."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion

from ci_build.wheelset.sbom import sbom
from tests.support.sets import wheel_set
from tests.unit.ci_build.test_set_files import (
    JAX,
    NUMPY_311,
    NUMPY_312,
    REPLACED,
    rocm_set,
)
from tests.unit.ci_build.test_set_lock import LOCK

RESOLVED = {"3.11": (JAX, NUMPY_311), "3.12": (JAX, NUMPY_312, REPLACED)}


def test_sbom_is_valid_and_has_hashes() -> None:
    # Imported late: it imports jsonschema, which takes more than a second.
    from cyclonedx.validation.json import JsonStrictValidator

    text = sbom(wheel_set(), RESOLVED)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    parts = {part["bom-ref"]: part for part in json.loads(text)["components"]}
    wheels = {wheel.filename: wheel.sha256 for wheel in wheel_set().wheels}
    assert {name: parts[name]["hashes"][0]["content"] for name in wheels} == wheels
    assert {*parts} == {
        *wheels,
        JAX.filename,
        NUMPY_311.filename,
        NUMPY_312.filename,
        "rocm 7.2.0",
    }


@pytest.mark.parametrize(
    ("changes", "references"),
    [
        (
            {
                "source": "pip+https://host/simple/",
                "packages": {"a.whl": "3" * 64},
                "urls": {"a.whl": "https://host/a.whl"},
            },
            {"https://host/simple/": "", "https://host/a.whl": "3" * 64},
        ),
        (
            {
                "source": "dnf+https://host/rhel8/7.2/main",
                "packages": {"hip-7.2.0-43.el8.x86_64": "3" * 64},
            },
            # The digest of a package is that of its header, not of its file.
            {"https://host/rhel8/7.2/main": "", "hip-7.2.0-43.el8.x86_64": ""},
        ),
    ],
)
def test_sbom_names_files_of_rocm(
    changes: dict[str, Any], references: dict[str, str]
) -> None:
    from cyclonedx.validation.json import JsonStrictValidator

    text = sbom(wheel_set(), RESOLVED, replace(LOCK, **changes))
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    (rocm,) = (
        part for part in json.loads(text)["components"] if part["name"] == "rocm"
    )
    listed = rocm["externalReferences"]
    assert {
        item["url"]: item.get("hashes", [{"content": ""}])[0]["content"]
        for item in listed
    } == references


def test_sbom_lists_recorded_wheels_of_rocm() -> None:
    text = json.loads(sbom(rocm_set(), RESOLVED))
    parts = {part["bom-ref"]: part for part in text["components"]}
    depends = {row["ref"]: row.get("dependsOn", []) for row in text["dependencies"]}
    pjrt = rocm_set().wheels[0].filename
    for package in rocm_set().rocm_packages:
        part = parts[package.filename]
        assert part["hashes"][0]["content"] == package.sha256
        assert part["externalReferences"][0]["url"] == package.url
        assert package.filename in depends[pjrt]


def test_sbom_dependencies() -> None:
    depends = {
        item["ref"]: item.get("dependsOn", [])
        for item in json.loads(sbom(wheel_set(), RESOLVED))["dependencies"]
    }
    for wheel in wheel_set().wheels:
        needs = depends[wheel.filename]
        assert ("rocm 7.2.0" in needs) == bool(wheel.targets)
        if wheel.name == "jax-rocm7-plugin":
            assert any(name.startswith("jax_rocm7_pjrt") for name in needs)
