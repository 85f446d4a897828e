"""Evidence files: writing, parsing and selection of the latest one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.digests import sha256_of
from core.errors import BucketError
from core.model import Evidence, Finding, Outcome, Severity, Tier
from promotion.evidence.evidence import (
    PARTS,
    EvidenceFile,
    dump_evidence,
    latest,
    latest_by_part,
    load_evidence,
    read_all,
    record,
    record_log,
    time_of,
)
from promotion.evidence.signing import Signer, new_key
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import StagedSet
from tests.support import sets
from tests.support.memory_bucket import MemoryBucket

STAGED = StagedSet(index="multi-arch", digest="ab" * 32)
EVIDENCE = sets.evidence(
    set_digest=STAGED.digest,
    gate="coverage",
    target="gfx90a:xnack-",
    tier=Tier.STRUCTURE,
    outcome=Outcome.FAILED,
    settings={"corpus": "small"},
    counts=sets.counts(passed=8, failed=1),
    findings=(
        Finding(
            code="x", severity=Severity.ERROR, message="m", remedy="r", member="a.so"
        ),
    ),
    details={"members": ["a.so"]},
)


def test_load_evidence_restores_dumped_evidence(tmp_path: Path) -> None:
    bucket = DirBucket(tmp_path)
    key = record(bucket, STAGED, EVIDENCE)
    assert record(bucket, STAGED, EVIDENCE) == key
    assert key.startswith(f"{STAGED.root}evidence/coverage/gfx90a~xnack-/")
    other = record(bucket, STAGED, replace(EVIDENCE, outcome=Outcome.PASSED))
    assert read_all(bucket, STAGED) == {
        key: EvidenceFile(evidence=EVIDENCE),
        other: EvidenceFile(evidence=replace(EVIDENCE, outcome=Outcome.PASSED)),
    }


def test_record_refuses_evidence_of_another_set(tmp_path: Path) -> None:
    with pytest.raises(BucketError, match="coverage is for set 0000"):
        record(DirBucket(tmp_path), STAGED, replace(EVIDENCE, set_digest="0" * 64))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda b: b.pop("counts"),
        lambda b: b.update(surprise=1),
        lambda b: b.update(outcome="excellent"),
        lambda b: b.update(schema=2),
    ],
)
def test_load_evidence_refuses_invalid_field(
    change: Callable[[dict[str, Any]], object],
) -> None:
    body = json.loads(dump_evidence(EVIDENCE))
    change(body)
    with pytest.raises(BucketError, match="some/key"):
        load_evidence(json.dumps(body).encode(), "some/key")


def test_latest_selects_worst_evidence_of_the_same_second() -> None:
    passed = replace(EVIDENCE, outcome=Outcome.PASSED)
    assert latest([EVIDENCE, passed])["coverage", EVIDENCE.target] == EVIDENCE


@pytest.mark.parametrize("part", PARTS)
def test_latest_keeps_worst_part(part: str) -> None:
    def said(word: str, second: int, outcome: Outcome) -> Evidence:
        ended = f"2026-01-02T03:04:{second:02}Z"
        return replace(EVIDENCE, settings={part: word}, outcome=outcome, ended=ended)

    fell = said("a", 6, Outcome.FAILED)
    passed = said("b", 7, Outcome.PASSED)
    mended = said("a", 8, Outcome.PASSED)
    (counts,) = latest([passed, fell]).values()
    assert counts == fell
    assert set(map(id, latest_by_part([fell, passed, mended]))) == {
        id(passed),
        id(mended),
    }
    (counts,) = latest([fell, passed, mended]).values()
    assert counts == mended


# Signatures


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return new_key(tmp_path / "key")


def test_record_stores_signature_before_evidence(signer: Signer) -> None:
    order: list[str] = []
    bucket = MemoryBucket(order.append)
    key = record(bucket, STAGED, EVIDENCE, signer=signer)
    assert order == [f"{key}.sig", key]
    assert record(bucket, STAGED, EVIDENCE, signer=signer) == key
    assert read_all(bucket, STAGED) == {
        key: EvidenceFile(evidence=EVIDENCE, key=signer.key)
    }


def test_read_all_reports_signature_of_other_evidence(signer: Signer) -> None:
    bucket = MemoryBucket()
    one = record(bucket, STAGED, EVIDENCE, signer=signer)
    two = record(
        bucket, STAGED, replace(EVIDENCE, outcome=Outcome.PASSED), signer=signer
    )
    bucket.damage(f"{two}.sig", bucket.get(f"{one}.sig"))
    said = read_all(bucket, STAGED)
    assert said[one].key == signer.key
    assert said[two].key == ""
    assert said[two].flaw == f"{two}.sig is not the signature of {two}."


def test_read_all_reports_damaged_signature(signer: Signer) -> None:
    bucket = MemoryBucket()
    key = record(bucket, STAGED, EVIDENCE, signer=signer)
    bucket.damage(f"{key}.sig", b"{}")
    (said,) = read_all(bucket, STAGED).values()
    assert said.evidence == EVIDENCE
    assert said.key == ""
    assert "is not a signature" in said.flaw


def test_record_log_stores_log_once(tmp_path: Path) -> None:
    bucket = DirBucket(tmp_path)
    logs = record_log(bucket, STAGED, "load", "a line\n")
    assert record_log(bucket, STAGED, "load", "a line\n") == logs
    ((name, sha256),) = logs.items()
    assert name.startswith("load/")
    assert sha256_of(bucket.get(STAGED.evidence + name)) == sha256
    assert read_all(bucket, STAGED) == {}


@pytest.mark.parametrize(
    "text",
    ["yesterday", "2026-1-2T03:04:05Z", "2026-01-02T03:04:05+00:00"],
)
def test_time_of_accepts_one_format(text: str) -> None:
    assert time_of(text) is None
    assert time_of("2026-01-02T03:04:05Z") is not None
