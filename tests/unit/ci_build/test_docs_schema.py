"""JSON Schemas accept the files that the program writes to a bucket, and require every field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import chain
from typing import Any

import pytest

from ci_build.docs.schema import SCHEMAS
from core.model import Evidence, Finding, Outcome, Severity, Tier
from promotion.evidence.evidence import dump_evidence
from promotion.evidence.signing import EVIDENCE_TYPE, new_key
from promotion.index.ledger_state import EntryKind
from promotion.index.operations import mark
from promotion.storage.directory_bucket import DirBucket
from tests.support.promoting import NOW, POLICY, RELEASED, go, staged_in
from tests.support.wheel_sets import make_wheels

SCHEMA_OF = {
    "evidence": "evidence.schema.json",
    "ledger": "ledger-entry.schema.json",
    "signature": "signature.schema.json",
    "status": "status.schema.json",
    "summary": "summary.schema.json",
    "wheels": "wheels.schema.json",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, list[Any]]:
    """Return the JSON files of an index with several kinds of ledger entries."""
    folder = tmp_path_factory.mktemp("index")
    bucket = DirBucket(folder / "bucket")
    signer = new_key(folder / "key")
    for minor in (1, 2):
        wheels = make_wheels(
            folder / "w", version=f"0.10.2+rocm7.{minor}.0", pythons=("3.12",)
        )
        staged = staged_in(bucket, folder / "sets", wheels)
        go(bucket, staged)
    told: dict[str, Any] = {"now": lambda: NOW}
    mark(
        bucket,
        RELEASED,
        EntryKind.YANK,
        ["1"],
        reason="slow",
        **told,
    )
    told["authority"] = POLICY.authority(signer)
    mark(
        bucket,
        RELEASED,
        EntryKind.QUARANTINE,
        ["2"],
        reason="wrong",
        **told,
    )
    texts = {
        "evidence": [
            bucket.get(key)
            for key in bucket.list(staged.evidence)
            if key.endswith(".json")
        ],
        "ledger": [bucket.get(key) for key in bucket.list(RELEASED.ledger)],
        "signature": [signer.sign(b"{}", EVIDENCE_TYPE).dump()],
        "status": [bucket.get(RELEASED.status)],
        "summary": [
            bucket.get(key) for key in bucket.list(RELEASED.root) if "/summary-" in key
        ],
        "wheels": [bucket.get(staged.file("wheels.json"))],
    }
    finding = Finding(code="x", severity=Severity.NOTE, message="m", remedy="")
    texts["evidence"].append(
        dump_evidence(
            Evidence(
                set_digest="a" * 64,
                gate="load",
                target="any",
                tier=Tier.STRUCTURE,
                outcome=Outcome.ERROR,
                started="2026-01-02T03:04:05Z",
                ended="2026-01-02T03:04:05Z",
                machine="m",
                settings={},
                counts={},
                findings=(finding,),
                details={"checks": [1, {"a": None}]},
                logs={"a.log": "b" * 64},
            )
        )
    )
    files = {}
    for name, found in texts.items():
        files[name] = [json.loads(text) for text in found]
    return files


def checker_of(name: str) -> Any:
    import jsonschema  # Imported late: it takes more than a second.

    return jsonschema.Draft202012Validator(SCHEMAS[SCHEMA_OF[name]]())


@pytest.mark.parametrize("name", SCHEMA_OF)
def test_schema_accepts_files_that_the_program_writes(
    files: Mapping[str, list[Any]], name: str
) -> None:
    checker = checker_of(name)
    checker.check_schema(checker.schema)
    assert len(files[name]) > 0
    errors = chain.from_iterable(checker.iter_errors(body) for body in files[name])
    assert [error.message for error in errors] == []


@pytest.mark.parametrize("name", SCHEMA_OF)
def test_schema_refuses_missing_field(
    files: Mapping[str, list[Any]], name: str
) -> None:
    checker = checker_of(name)
    body = files[name][0]
    accepted = []
    for key in body:
        if checker.is_valid(
            {other: value for other, value in body.items() if other != key}
        ):
            accepted.append(key)
    assert accepted == []
