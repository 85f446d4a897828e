"""Findings of wheels as published, and texts of findings; `tests/unit/gate_table` has each kind."""

from __future__ import annotations

import pytest

from core.model import Finding, Severity
from wheelkit.elf.snapshot import HIP_RUNTIME
from wheelkit.findings import REPORT_PUBLISHED, as_published, finding
from wheelkit.inspect.metadata_rules import rocm_in_summary


@pytest.mark.parametrize(
    ("summary", "version"),
    [
        ("JAX PJRT plugin (ROCm:Legacy ROCm 7.2.0)", "7.2.0"),
        ("JAX PJRT plugin (ROCm:unknown)", ""),
    ],
)
def test_rocm_in_summary_finds_first_version(summary: str, version: str) -> None:
    assert rocm_in_summary(summary) == version


def published(project: str, *codes: str) -> list[Finding]:
    return list(
        as_published([finding(code, "text", member="x.so") for code in codes], project)
    )


def test_as_published_replaces_linking_findings_of_jaxlib_by_one_note() -> None:
    (note,) = published(
        "jaxlib", *["runpath-build-leftover"] * 27, *["symbols-not-stripped"] * 3
    )
    assert note.code == "published-unchanged"
    assert note.severity == Severity.NOTE
    assert "runpath-build-leftover (27), symbols-not-stripped (3)" in note.message


def test_as_published_keeps_unsafe_search_paths_of_jaxlib() -> None:
    (kept,) = published("jaxlib", "runpath-unsafe")
    assert kept.code == "runpath-unsafe"
    assert kept.severity == Severity.WARNING
    assert kept.remedy == REPORT_PUBLISHED


@pytest.mark.parametrize(
    ("name", "matches"),
    [
        ("__hipRegisterFatBinary", True),
        ("hipGetDevicePropertiesR0600", True),
        ("hipsolverDnCreate", False),
        ("chipMalloc", False),
    ],
)
def test_hip_runtime_matches_its_functions_only(name: str, matches: bool) -> None:
    assert (HIP_RUNTIME.fullmatch(name) is not None) is matches
