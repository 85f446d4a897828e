"""JSON Schemas of evidence, ledger entries and wheels.json: they accept what the program writes, and nothing else."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ci_build.docs import schema
from ci_build.docs.schema import SCHEMAS, descriptions, evidence_schema, ledger_schema, wheels_schema
from core.model import Evidence, Finding, Outcome, Severity, Tier
from promotion.evidence.evidence import dump_evidence
from promotion.evidence.signing import new_key
from promotion.index.ledger import PromotedSet
from promotion.index.ledger_state import EntryKind
from promotion.index.operations import mark, rollback, sign
from promotion.storage.directory_bucket import DirBucket
from tests.support.promoting import NOW, POLICY, RELEASED, go, staged_in
from tests.support.wheel_sets import make_wheels


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, list[Any]]:
    """Return the JSON files of an index with promotions, marks, a rollback and a signature."""
    folder = tmp_path_factory.mktemp("index")
    bucket, signer = DirBucket(folder / "bucket"), new_key(folder / "key")
    for minor in (1, 2):
        wheels = make_wheels(folder / "w", version=f"0.10.2+rocm7.{minor}.0", pythons=("3.12",))
        staged = staged_in(bucket, folder / "sets", wheels)
        go(bucket, staged)
    told: Mapping[str, Any] = {"actor": "me", "now": lambda: NOW}
    mark(bucket, RELEASED, EntryKind.YANK, ["1"], reason="slow", **told)
    mark(bucket, RELEASED, EntryKind.QUARANTINE, ["2"], reason="wrong", **told)
    rollback(bucket, RELEASED, to=1, reason="back", **told)
    sign(bucket, RELEASED, reason="reviewed", authority=POLICY.authority(signer), **told)
    texts = {
        "evidence": [bucket.get(key) for key in bucket.list(staged.evidence) if key.endswith(".json")],
        "ledger": [bucket.get(key) for key in bucket.list(RELEASED.ledger)],
        "wheels": [bucket.get(staged.file("wheels.json"))],
    }
    finding = Finding(code="x", severity=Severity.NOTE, message="m", remedy="")
    texts["evidence"].append(
        dump_evidence(
            Evidence(
                set_digest="a" * 64, gate="load", target="any", tier=Tier.STRUCTURE, outcome=Outcome.ERROR,
                started="2026-01-02T03:04:05Z", ended="2026-01-02T03:04:05Z", machine="m", settings={}, counts={},
                findings=(finding,), details={"checks": [1, {"a": None}]}, logs={"a.log": "b" * 64},
            )
        )
    )  # fmt: skip
    return {name: [json.loads(text) for text in found] for name, found in texts.items()}


MAKERS: Mapping[str, Callable[[], Mapping[str, Any]]] = {
    "evidence": evidence_schema,
    "ledger": ledger_schema,
    "wheels": wheels_schema,
}


@pytest.mark.parametrize(("name", "least"), [("evidence", 5), ("ledger", 6), ("wheels", 1)])
def test_schema_accepts_files_that_the_program_writes(files: Mapping[str, list[Any]], name: str, least: int) -> None:
    made = MAKERS[name]()
    jsonschema.Draft202012Validator.check_schema(made)
    assert len(files[name]) >= least
    for body in files[name]:
        jsonschema.validate(body, made)


WRONG = [
    ("evidence", ("unknown",), 1),
    ("evidence", ("outcome",), "fine"),
    ("evidence", ("tier",), "gold"),
    ("evidence", ("schema",), 2),
    ("evidence", ("counts", "passed"), "many"),
    ("evidence", ("set_digest",), "abc"),
    ("evidence", ("ended",), "yesterday"),
    ("ledger", ("unknown",), 1),
    ("ledger", ("kind",), "celebrate"),
    ("ledger", ("number",), 0),
    ("ledger", ("state", "held"), ["one"]),
    ("ledger", ("state", "yanked"), {"first": "slow"}),
    ("ledger", ("promoted", "wheels", 0, "size"), "large"),
    ("ledger", ("promoted", "policy", "stale_days"), "ten"),
    ("wheels", ("unknown",), 1),
    ("wheels", ("wheels", 0, "size"), "large"),
    ("wheels", ("digest",), "abc"),
]


@pytest.mark.parametrize(("name", "place", "value"), WRONG)
def test_schema_refuses_wrong_value(
    files: Mapping[str, list[Any]], name: str, place: tuple[Any, ...], value: object
) -> None:
    body = copy.deepcopy(files[name][0])
    part = body
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(body, MAKERS[name]())


@pytest.mark.parametrize("name", MAKERS)
def test_schema_refuses_missing_field(files: Mapping[str, list[Any]], name: str) -> None:
    checker, body = jsonschema.Draft202012Validator(MAKERS[name]()), files[name][0]
    accepted = [
        key for key in body if checker.is_valid({other: value for other, value in body.items() if other != key})
    ]
    assert accepted == (["file_sizes"] if name == "wheels" else [])


def test_signed_entry_has_signature(files: Mapping[str, list[Any]]) -> None:
    assert [("signature" in body) for body in files["ledger"]] == [False] * 5 + [True]


def test_schema_explains_fields() -> None:
    assert descriptions(PromotedSet)["tiers"] == "gfx target -> tier at which the set was tested."
    assert descriptions(Evidence)["ended"] == descriptions(Evidence)["started"] != ""
    properties = ledger_schema()["$defs"]["PromotedSet"]["properties"]
    assert properties["tiers"]["description"] == "gfx target -> tier at which the set was tested."


def test_schema_of_unknown_type_is_an_error() -> None:
    with pytest.raises(KeyError):
        schema._schema_of(Path, {})


def test_schemas_have_names_for_files() -> None:
    assert [*SCHEMAS] == ["evidence.schema.json", "ledger-entry.schema.json", "wheels.schema.json"]
    assert all(make()["additionalProperties"] is False for make in SCHEMAS.values())
