"""Checks and attachments of the device gate."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path

from promotion.evidence.evidence import dump_evidence
from promotion.evidence.test_results import TestVerdict
from promotion.gates.device import device_evidence as evidence
from tests.support.device_results import (
    FLAKE_EXCEPTION,
    checks_of,
    judged,
    result,
)

V = TestVerdict


def test_checks_of_tests_count_each_verdict() -> None:
    found = judged(checks_of())
    assert dict(found.counts) == {
        "collected": 9,
        "run": 5,
        "passed": 2,
        "failed": 2,
        "known": 1,
        "skipped": 4,
    }
    assert found.outcome.value == "failed"
    # Passed tests are summarised by file.
    assert len(found.details["checks"]) == 7


def test_evidence_records_exceptions_of_flaky_tests() -> None:
    release = replace(FLAKE_EXCEPTION, channel="release", owner="another")
    (found,) = checks_of(
        (result("odd", V.FLAKY, "E   once"),), (FLAKE_EXCEPTION, release)
    )
    record = json.loads(dump_evidence(judged([found])))["details"]["checks"][0]
    assert record["outcome"] == "known"
    assert str(FLAKE_EXCEPTION) in record["why"]
    assert [entry["channel"] for entry in record["exceptions"]] == [
        "nightly",
        "release",
    ]


def test_checks_of_tests_group_failures_of_one_cause() -> None:
    cause = "AttributeError: module 'jax' has no attribute 'new'"
    same = [
        result(f"t{n}", V.FAILED, f"line {n}\nE   {cause}\nE   more {n}")
        for n in range(282)
    ]
    few = [
        result(f"f{n}", V.FAILED, "E   ValueError: rare") for n in range(evidence.NAMED)
    ]
    sick = [result(f"m{n}", V.ENVIRONMENT, "hipErrorNoDevice") for n in range(9)]
    found = checks_of((*few, *same, *sick))
    assert [(check.name, check.times, check.outcome) for check in found] == [
        (f"282 x {cause}", 282, "failed"),
        ("9 x hipErrorNoDevice", 9, "skipped"),
        *((f"tests/a_test.py::f{n}", 1, "failed") for n in range(evidence.NAMED)),
    ]
    assert len(dump_evidence(judged(found))) < 10_000


def test_logs_are_packed_reproducibly(tmp_path: Path) -> None:
    for name in ("output.log", "gw0.crash", "gw0.jsonl", "plan.json", "secret.txt"):
        (tmp_path / "0000").mkdir(exist_ok=True)
        (tmp_path / "0000" / name).write_bytes(b"\xff\x00" + name.encode())
    logs = evidence.pack_logs(tmp_path)
    assert logs == evidence.pack_logs(tmp_path)
    with tarfile.open(fileobj=io.BytesIO(logs)) as archive:
        assert "0000/secret.txt" not in archive.getnames()
        assert len(archive.getnames()) == 4
