"""Comparison of runs with promoted sets and with the ledgers of known tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from core.model import Outcome, Tier
from promotion.evidence.evidence import ENVIRONMENT, record
from promotion.evidence.known_tests import KnownTests
from promotion.evidence.test_results import TestResult, TestVerdict, dump_results
from promotion.gates.common.gate_context import Check, error
from promotion.gates.common.gate_runs import check_record
from promotion.gates.device import device_evidence as device
from promotion.gates.device.baseline import RUN, baseline, check_ledgers
from promotion.stage import read_staged
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import StagedSet
from tests.support.promoting import go, staged_in
from tests.support.wheel_sets import SetWheel, make_wheels, passing_evidence
from tests.unit.promotion.test_known_tests import entry

LARGE = {
    "platform": "rocm",
    "size": "large",
    "passes": "single",
    "python": "3.12",
}
SMALL = {**LARGE, "size": "small"}
UNFIT = error(ENVIRONMENT, "There is no GPU.", "")


class Index:
    """Sets that are staged, tested and promoted one after another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bucket = DirBucket(folder / "bucket")
        self.wheels: list[SetWheel] = make_wheels(folder / "wheels")
        self.count = 0

    def promoted(self, *words: tuple[Mapping[str, str], int, Outcome]) -> str:
        """Promote another set with evidence of the device gate on gfx942 for each of `words`.

        Return its digest.
        """
        self.count += 1
        staged = staged_in(
            self.bucket, self.folder, self.wheels, tools={"tests": str(self.count)}
        )
        for number, (settings, run, outcome) in enumerate(words):
            self._said(
                staged, settings, run, outcome, ended=f"2026-01-02T03:04:{number:02}Z"
            )
        go(self.bucket, staged)
        return staged.digest

    def _said(
        self,
        staged: StagedSet,
        settings: Mapping[str, str],
        run: int,
        outcome: Outcome,
        *,
        ended: str,
    ) -> None:
        result = TestResult(
            id="a.py::x", verdict=TestVerdict.PASSED, seconds=run, attempts=1
        )
        data = device.pack(dump_results([result]))
        files = device.upload(
            self.bucket, staged, "device", "gfx942", {device.RESULTS: data}
        )
        (like, *_) = passing_evidence(read_staged(self.bucket, staged))
        said = replace(
            like,
            gate="device",
            target="gfx942",
            tier=Tier.DEVICE,
            outcome=outcome,
            started=ended,
            ended=ended,
            settings={**like.settings, **settings},
            counts={
                "collected": run + 5,
                "run": run,
                "passed": run,
                "failed": 0,
                "known": 0,
                "skipped": 5,
            },
            findings=() if outcome is Outcome.PASSED else (UNFIT,),
            details={
                "checks": [
                    check_record(
                        Check(
                            name=RUN, target="gfx942", times=0, details={"files": files}
                        )
                    )
                ]
            },
        )
        record(self.bucket, staged, said)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    return Index(tmp_path)


def test_baseline_is_newest_comparable_passed_run(index: Index) -> None:
    def before(settings: Mapping[str, str], target: str = "gfx942") -> tuple[str, int]:
        found = baseline(index.bucket, "multi-arch", "device", target, settings)
        return found.set_digest, found.counts.get("run", 0)

    assert before(LARGE) == ("", 0)
    first = index.promoted((LARGE, 1000, Outcome.PASSED), (SMALL, 10, Outcome.PASSED))
    second = index.promoted(
        (SMALL, 20, Outcome.PASSED),
        ({**LARGE, "passes": "single multi"}, 1200, Outcome.PASSED),
    )
    index.promoted((LARGE, 0, Outcome.ERROR))
    # Smaller suites, runs with more passes, and incomplete runs are not comparable.
    assert before(LARGE) == (first, 1000)
    assert before({**LARGE, "passes": "single multi"}) == (second, 1200)
    assert before(SMALL) == (second, 20)
    assert before({**LARGE, "python": "3.11"}) == (first, 1000)
    assert before(LARGE, "gfx950") == before({**LARGE, "size": "medium"}) == ("", 0)


SMOKE = {**LARGE, "size": "", "passes": "all"}


@pytest.mark.parametrize(
    ("pattern", "settings", "idle"),
    [
        ("tests/gone_test.py", SMALL, False),
        ("test_gone.py::*", SMOKE, True),
        ("test_gone.py::*", {**SMOKE, "passes": "single"}, False),
    ],
)
def test_check_ledgers_reports_unmatched_entry_of_whole_suite(
    pattern: str, settings: Mapping[str, str], idle: bool
) -> None:
    results = [TestResult(id="tests/here_test.py::x", verdict=TestVerdict.PASSED)]
    found = [
        *check_ledgers(KnownTests(active=(entry(pattern=pattern),)), results, settings)
    ]
    assert [finding.code for finding in found] == (["ledger-idle"] if idle else [])
