"""Kept results: a pass is reused for the same files in another bucket, and nothing else is."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from core.errors import BucketError
from core.model import PYLOCK, Evidence, Outcome, Tier
from core.store import ContentStore
from promotion.corpus.catalog import load_corpus
from promotion.evidence.evidence import read_all, record
from promotion.gates import inspection
from promotion.gates.abi import gate as abi_gate
from promotion.gates.common import kept_results, machine_tools
from promotion.gates.common.gate import Check, Gate, GateContext, content_alone, error
from promotion.gates.common.runs import run_gates
from promotion.gates.compile import gate as compile_gate
from promotion.gates.compile.drift import PreviousCode
from promotion.gates.compile.gate import CompileOptions
from promotion.gates.coverage import gate as coverage_gate
from promotion.gates.install import gate as install_gate
from promotion.gates.load import gate as load_gate
from promotion.stage import stage
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.keys import StagedSet
from tests.support.silent import NoProcesses, Silent
from tests.support.wheel_sets import TARGETS, make_set, make_wheels, write_set

PYTHON = ("3.12",)


class Place:
    """A set, a user's cache, and a gate that records the targets that it checks."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, ContentStore(folder / "cache")
        wheels = make_wheels(folder / "w", pythons=PYTHON)
        self.set = write_set(folder / "set", wheels, make_set(wheels, python_versions=PYTHON))
        self.ran: list[tuple[str, ...]] = []
        self.passes = True
        self.bucket, self.staged = self.another_bucket()

    def another_bucket(self) -> tuple[DirBucket, StagedSet]:
        self.bucket = DirBucket(self.folder / f"bucket-{len(list(self.folder.iterdir()))}")
        self.staged = stage(self.bucket, self.set)
        return self.bucket, self.staged

    def gate(self, **options: Any) -> Gate:
        def checks(context: GateContext) -> Iterator[Check]:
            self.ran.append(context.targets)
            for target in context.targets:
                yield Check(name="a", target=target, findings=() if self.passes else (error("bad", "It is bad.", ""),))

        plain: dict[str, Any] = {"name": "coverage", "tier": Tier.STRUCTURE, "per_target": True}
        return Gate(run=checks, **{**plain, "inputs": content_alone, **options})

    def run(self, gate: Gate | None = None, **options: Any) -> tuple[Evidence, ...]:
        gates = [gate or self.gate()]
        return run_gates(self.bucket, self.staged, gates, NoProcesses(), Silent(), store=self.store, **options)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_pass_is_reused_in_another_bucket(place: Place) -> None:
    first = place.run()
    bucket, staged = place.another_bucket()
    again = place.run()
    assert place.ran == [TARGETS]
    for old, new in zip(first, again, strict=True):
        reused = {"computed": old.ended, "machine": old.machine}
        assert new == replace(old, details={**old.details, "reused": reused})
    stored = [file.evidence for file in read_all(bucket, staged).values()]
    assert sorted(stored, key=lambda evidence: evidence.target) == sorted(again, key=lambda evidence: evidence.target)


def test_only_targets_without_result_run(place: Place) -> None:
    place.run(targets=TARGETS[:1])
    place.another_bucket()
    evidences = place.run()
    assert place.ran == [TARGETS[:1], TARGETS[1:]]
    assert [evidence.target for evidence in evidences] == list(TARGETS)
    assert ["reused" in evidence.details for evidence in evidences] == [True, *(False for _ in TARGETS[1:])]


def test_failure_is_not_kept(place: Place) -> None:
    place.passes = False
    assert {evidence.outcome for evidence in place.run()} == {Outcome.FAILED}
    place.another_bucket()
    place.run()
    assert len(place.ran) == 2


def test_redo_runs_again(place: Place) -> None:
    place.run()
    place.another_bucket()
    assert not any("reused" in evidence.details for evidence in place.run(redo=True))
    assert len(place.ran) == 2


def test_changed_staged_file_runs_again(place: Place) -> None:
    place.run()
    bucket, staged = place.another_bucket()
    wheel = bucket.path(next(key for key in bucket.list(staged.root) if key.endswith(".whl")))
    data = bytearray(wheel.read_bytes())
    data[len(data) // 2] ^= 1
    wheel.unlink()
    wheel.write_bytes(data)
    place.run()
    assert len(place.ran) == 2


@pytest.mark.parametrize(
    "change", [{"settings": {"rules": "other"}}, {"inputs": lambda _context: {"python": "other"}}, {"name": "abi"}]
)
def test_other_settings_inputs_or_gate_run_again(place: Place, change: Mapping[str, Any]) -> None:
    place.run()
    for _ in range(2):
        place.another_bucket()
        place.run(place.gate(**change))
    assert len(place.ran) == 2


@pytest.mark.parametrize("change", [{"inputs": None}, {"inputs": lambda _context: None}, {"partial": True}])
def test_results_with_unknown_inputs_are_neither_kept_nor_reused(place: Place, change: Mapping[str, Any]) -> None:
    place.run()
    for _ in range(2):
        place.another_bucket()
        place.run(place.gate(**change))
    assert len(place.ran) == 3


def test_changed_program_runs_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.run()
    place.another_bucket()
    monkeypatch.setattr(kept_results, "own_digest", lambda _root, _folders: "other")
    place.run()
    assert len(place.ran) == 2


def test_inputs_that_cannot_be_read_leave_the_report_to_the_gate(place: Place) -> None:
    def broken(_context: GateContext) -> Mapping[str, str]:
        raise BucketError("The ledger cannot be read.")

    assert {evidence.outcome for evidence in place.run(place.gate(inputs=broken))} == {Outcome.PASSED}
    assert len(place.ran) == 1


@pytest.mark.parametrize("damage", ["text", "empty", "none", "two"])
def test_damaged_result_is_computed_again(place: Place, damage: str) -> None:
    place.run()
    for path in place.store.root.glob("*/*.json"):
        match damage:
            case "text":
                path.write_text(path.read_text().replace('"passed"', '"failed"'))
            case "empty":
                path.write_bytes(b"")
            case "none":
                path.unlink()
            case "two":
                shutil.copy(path, path.with_name("other.json"))
    place.another_bucket()
    place.run()
    place.another_bucket()
    place.run()
    assert len(place.ran) == 2, "the second run replaced the damaged results"


def test_evidence_beside_the_set_decides(place: Place) -> None:
    first = place.run()
    bucket, staged = place.another_bucket()
    record(bucket, staged, replace(first[0], outcome=Outcome.FAILED, ended="2000-01-01T00:00:00Z"))
    place.run()
    assert place.ran == [TARGETS, TARGETS[:1]]


def test_old_result_runs_again(place: Place) -> None:
    place.run()
    place.another_bucket()
    place.run(max_age=timedelta(hours=1))
    assert len(place.ran) == 1
    place.another_bucket()
    place.run(max_age=timedelta(seconds=-5))
    assert len(place.ran) == 2


def test_compile_depends_on_locked_jax_and_earlier_code(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_tools, "find_pythons", lambda _versions, _runner: {"3.12": Path("/usr/bin/python3.12")})
    contexts: list[GateContext] = []

    def keep_context(context: GateContext) -> None:
        contexts.append(context)

    def inputs(**options: Any) -> Mapping[str, str] | None:
        gate = compile_gate.make_gate(load_corpus(), CompileOptions(**options))
        assert gate.inputs is not None
        return gate.inputs(contexts[0])

    place.run(place.gate(inputs=keep_context))
    staged, bucket = place.staged, place.bucket
    lock = bucket.path(staged.file(PYLOCK))
    lock.unlink(missing_ok=True)
    assert inputs() is None, "the newest compatible jax is installed"
    lock.write_text("")
    plain, later = inputs(), inputs(before=PreviousCode(set_digest="a" * 64))
    assert plain is not None
    assert plain["python"] == str(Path("/usr/bin/python3.12").resolve())
    assert later is not None
    assert later["before"] != plain["before"]


def test_results_of_gates_that_run_the_set_on_this_machine_are_not_kept() -> None:
    assert load_gate.make_gate().inputs is install_gate.make_gate().inputs is None
    for gate in (inspection.GATE, abi_gate.make_gate(), coverage_gate.GATE):
        assert gate.inputs is content_alone
