"""Findings of wheels as published, and texts of findings; `tests/unit/gate_table` has each kind."""

from __future__ import annotations

import pytest

from core.model import Severity
from wheelkit.elf.snapshot import HIP_RUNTIME
from wheelkit.findings import (
    REPAIR_PUBLISHED,
    REPORT_PUBLISHED,
    as_published,
    finding,
)
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


@pytest.mark.parametrize(
    ("project", "code", "remedy"),
    [
        ("jaxlib", "record-wrong-hash", finding("record-wrong-hash", "").remedy),
        ("jaxlib", "tag-linux", REPORT_PUBLISHED),
        ("jax-rocm7-pjrt", "tag-linux", REPAIR_PUBLISHED),
        ("jax-rocm7-pjrt", "purelib-with-elf", ""),
        ("jax-rocm7-pjrt", "jaxlib-unpinned", ""),
    ],
)
def test_as_published_keeps_errors_that_hurt_users(
    project: str, code: str, remedy: str
) -> None:
    kept = list(as_published([finding(code, "text")], project))
    assert [item.remedy for item in kept] == ([remedy] if remedy else [])
    assert all(item.severity is Severity.ERROR for item in kept)


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
