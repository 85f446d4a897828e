"""Evidence: written once, read field by field, the last word of each gate counts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ci_build.errors import BucketError
from ci_build.model import Evidence, Finding, Outcome, Severity, Tier
from promotion.dirbucket import DirBucket
from promotion.evidence import dump_evidence, latest, load_evidence, read_all, record
from promotion.layout import StagedSet

STAGED = StagedSet(index="multi-arch", digest="ab" * 32)
EVIDENCE = Evidence(
    set_digest=STAGED.digest,
    gate="coverage",
    target="gfx90a:xnack-",
    tier=Tier.STRUCTURE,
    outcome=Outcome.FAILED,
    started="2026-01-02T03:04:05Z",
    ended="2026-01-02T03:04:06Z",
    machine="tests",
    settings={"corpus": "small"},
    counts={"collected": 1, "run": 1, "passed": 0, "failed": 1, "known": 0, "skipped": 0},
    findings=(Finding(code="x", severity=Severity.ERROR, message="m", remedy="r", member="a.so"),),
    details={"members": ["a.so"]},
)


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    bucket = DirBucket(tmp_path)
    key = record(bucket, STAGED, EVIDENCE)
    assert record(bucket, STAGED, EVIDENCE) == key
    assert key.startswith(f"{STAGED.root}evidence/coverage/gfx90a~xnack-/")
    other = record(bucket, STAGED, replace(EVIDENCE, outcome=Outcome.PASSED))
    assert read_all(bucket, STAGED) == {
        key: EVIDENCE,
        other: replace(EVIDENCE, outcome=Outcome.PASSED),
    }


def test_evidence_of_another_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BucketError, match="coverage names set 0000"):
        record(DirBucket(tmp_path), STAGED, replace(EVIDENCE, set_digest="0" * 64))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda b: b.pop("counts"),
        lambda b: b.update(surprise=1),
        lambda b: b.update(outcome="excellent"),
        lambda b: b.update(tier="rumour"),
        lambda b: b.update(schema=1),
        lambda b: b.pop("schema"),
        lambda b: b.update(findings=[{"code": "x"}]),
        lambda b: b.update(findings=7),
    ],
)
def test_what_is_not_understood_is_refused(change: object) -> None:
    body = json.loads(dump_evidence(EVIDENCE))
    assert callable(change)
    change(body)
    with pytest.raises(BucketError, match="some/key"):
        load_evidence(json.dumps(body).encode(), "some/key")


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b"null"])
def test_what_is_no_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(BucketError, match="some/key"):
        load_evidence(data, "some/key")


def test_the_last_word_counts() -> None:
    passed = replace(EVIDENCE, outcome=Outcome.PASSED, ended="2026-01-02T03:04:07Z")
    assert latest([passed, EVIDENCE])["coverage", EVIDENCE.target] == passed
    assert latest([EVIDENCE, replace(passed, ended=EVIDENCE.ended)])["coverage", EVIDENCE.target] == EVIDENCE
