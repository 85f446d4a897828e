"""The history of test results: one SQLite file for each index, beside its staged sets.

The history contains verdicts, durations, and skipped tests with their reasons. All of this is copied from evidence. The
file is not signed, and neither gates nor policies read it.
"""

from __future__ import annotations

import itertools
import re
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Self

from core.errors import BucketError
from promotion.evidence.known_tests import pattern_of
from promotion.evidence.test_changes import Results, TestChange, compare_runs
from promotion.evidence.test_results import RecordedOutcome, SuiteRun, TestResult, TestVerdict
from promotion.storage.bucket import Bucket, ConflictError
from promotion.storage.keys import run_history_file

MOST_RUNS = 60
"""Number of the newest runs that are kept of each kind, see `SuiteRun.kind`."""
_ATTEMPTS = 8
_SCHEMA_VERSION = 3
_SCHEMA = f"""
pragma user_version = {_SCHEMA_VERSION};
create table test (id integer primary key, name text not null unique);
create table run (
    id integer primary key,
    evidence text not null unique,
    set_digest text not null,
    platform text not null,
    family text not null,
    jax text not null,
    rocm text not null,
    suite text not null,
    finished text not null,
    python text not null default '',
    passes text not null default ''
);
create table outcome (
    test integer not null references test,
    run integer not null references run on delete cascade,
    verdict text not null,
    seconds real not null,
    attempts integer not null,
    why text not null default '',
    primary key (test, run)
) without rowid;
create index outcome_of_run on outcome (run);
"""
_UPGRADES = {
    1: "alter table outcome add column why text not null default '';",
    2: "alter table run add column python text not null default '';"
    " alter table run add column passes text not null default '';",
}
"""Version of the schema -> statements that bring it to the next version."""
_WHY_CHARACTERS = 80


@dataclass(frozen=True, kw_only=True, slots=True)
class RunTally:
    """The summary of a run.

    Attributes:
        verdicts: verdict -> number of tests, without zeros.
        skipped: id of an entry in `ledgers/`, or reason given by the suite -> number of skipped tests.
        seconds: total duration of all tests.
        previous: digest of the set of the newest earlier run of this kind on another set; empty without one.
        changes: tests that changed since that run.
    """

    run: SuiteRun
    verdicts: Mapping[TestVerdict, int]
    skipped: Mapping[str, int]
    seconds: float
    previous: str = ""
    changes: tuple[TestChange, ...] = ()


_RUN = tuple(field.name for field in fields(SuiteRun))


class TestRuns:
    """The history of one index in memory, as a context manager.

    Args:
        data: content of the file. Empty for a new history.

    Raises:
        BucketError: the file is damaged.
    """

    __test__ = False

    def __init__(self, data: bytes = b"") -> None:
        self._db = sqlite3.connect(":memory:", isolation_level=None)
        try:
            if data:
                self._db.deserialize(data)
                (version,) = self._db.execute("pragma user_version").fetchone()
                while version in _UPGRADES:
                    self._db.executescript(f"{_UPGRADES[version]} pragma user_version = {version + 1};")
                    version += 1
                (sound,) = self._db.execute("pragma quick_check(1)").fetchone()
                if version != _SCHEMA_VERSION or sound != "ok":
                    raise sqlite3.DatabaseError(f"schema {version}, {sound}")
            else:
                self._db.executescript(_SCHEMA)
            self._db.execute("pragma foreign_keys = on")
        except sqlite3.Error as error:
            self._db.close()
            raise BucketError(
                f"The history of tests is damaged: {error}.",
                hint="Remove the file and run `ci_build history INDEX --tests --rebuild` to restore it from evidence.",
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def dump(self) -> bytes:
        """Return the content of the file; equal runs, recorded in the same order, give equal bytes."""
        self._db.execute("vacuum")
        return self._db.serialize()

    def add(self, run: SuiteRun, results: Collection[TestResult], *, keep: int = MOST_RUNS) -> bool:
        """Record a run and remove the oldest runs of the same kind; return False if it is already recorded."""
        with self._db:
            self._db.execute("begin")
            if self._db.execute("select 1 from run where evidence = ?", (run.evidence,)).fetchone():
                return False
            values = [getattr(run, name) for name in _RUN]
            insert = "insert into run values (null, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            row = self._db.execute(insert, values).lastrowid
            self._db.executemany("insert or ignore into test (name) values (?)", [(item.id,) for item in results])
            self._db.executemany(
                "insert into outcome select id, ?, ?, ?, ?, ? from test where name = ?",
                [
                    (row, item.verdict.value, round(item.seconds, 3), item.attempts, _why(item), item.id)
                    for item in results
                ],
            )
            self._db.execute(
                "delete from run where (platform, family, suite, python, passes) = (?, ?, ?, ?, ?) and id not in"
                " (select id from run where (platform, family, suite, python, passes) = (?, ?, ?, ?, ?)"
                " order by finished desc, id desc limit ?)",
                (*run.kind, *run.kind, keep),
            )
            self._db.execute("delete from test where id not in (select test from outcome)")
        return True

    def families(self) -> frozenset[str]:
        """Return the families with recorded runs."""
        return frozenset(name for (name,) in self._db.execute("select distinct family from run where family != ''"))

    def outcomes(
        self, pattern: str = "*", *, test: str = "", family: str | None = None, limit: int | None = 1000
    ) -> Iterator[RecordedOutcome]:
        """Yield results of tests, the newest run first.

        Args:
            pattern: pattern of node ids, with the wildcards * and ?.
            test: node id of a single test, instead of a pattern.
            family: family of the runs. None means all.
        """
        pattern_of_test = re.compile(re.escape(test)) if test else pattern_of(pattern)
        rows = self._db.execute(
            "select name, verdict, seconds, attempts, run.*"
            " from outcome join test on test.id = test join run on run.id = run"
            " where ? is null or family = ? order by finished desc, run.id desc, name",
            (family, family),
        )
        matches = (row for row in rows if pattern_of_test.fullmatch(row[0]))
        for name, verdict, seconds, attempts, _, *values in itertools.islice(matches, limit):
            verdict = TestVerdict(verdict)
            yield RecordedOutcome(test=name, verdict=verdict, seconds=seconds, attempts=attempts, run=_run(values))

    def tallies(self, *, family: str | None = None, limit: int = 1000) -> Iterator[RunTally]:
        """Yield summaries of runs, newest first, with what changed; see `outcomes` for the arguments."""
        runs = self._db.execute(
            "select * from run where ? is null or family = ? order by finished desc, id desc limit ?",
            (family, family, limit),
        ).fetchall()
        known: dict[int, Results] = {}  # results of the run that is read next of each kind
        for number, *values in runs:
            run = _run(values)
            number_before, set_before = self._previous(run, number)
            verdicts, skipped, seconds = Counter[TestVerdict](), Counter[str](), 0.0
            rows = self._db.execute(
                "select verdict, why, count(*), sum(seconds) from outcome where run = ? group by verdict, why",
                (number,),
            )
            for verdict, why, count, took in rows:
                verdicts[TestVerdict(verdict)] += count
                seconds += took
                if verdict == TestVerdict.SKIPPED:
                    skipped[why] += count
            changes: tuple[TestChange, ...] = ()
            if set_before:
                now = known.pop(number, None) or self._results(number)
                known[number_before] = known.get(number_before) or self._results(number_before)
                changes = compare_runs(known[number_before], now)
            yield RunTally(
                run=run, verdicts=verdicts, skipped=skipped, seconds=round(seconds, 3), previous=set_before,
                changes=changes,
            )  # fmt: skip

    def _previous(self, run: SuiteRun, number: int) -> tuple[int, str]:
        """Return number and set of the newest earlier run of a kind on another set; (0, "") if there is none."""
        found = self._db.execute(
            "select id, set_digest from run where (platform, family, suite, python, passes) = (?, ?, ?, ?, ?)"
            " and set_digest != ? and (finished, id) < (?, ?) order by finished desc, id desc limit 1",
            (*run.kind, run.set_digest, run.finished, number),
        ).fetchone()
        return found or (0, "")

    def _results(self, number: int) -> Results:
        """Return the results of a run."""
        rows = self._db.execute(
            "select name, verdict, seconds from outcome join test on test.id = test where run = ?", (number,)
        )
        return {name: (TestVerdict(verdict), seconds) for name, verdict, seconds in rows}


def _run(values: Sequence[str]) -> SuiteRun:
    return SuiteRun(**dict(zip(_RUN, values, strict=True)))


def _why(result: TestResult) -> str:
    """Return why a test was skipped: the entry of a ledger, or the reason of the suite."""
    if result.verdict is not TestVerdict.SKIPPED:
        return ""
    return result.entry if result.entry not in ("", "suite") else " ".join(result.message.split())[:_WHY_CHARACTERS]


def read_runs(bucket: Bucket, index: str) -> TestRuns:
    """Return the history of an index, which is empty before the first test."""
    stored = bucket.read(run_history_file(index))
    return TestRuns(stored[0] if stored else b"")


def record(bucket: Bucket, index: str, runs: Sequence[tuple[SuiteRun, Collection[TestResult]]]) -> int:
    """Record runs; recorded runs and concurrent changes are kept.

    Returns:
        The number of new runs.

    Raises:
        BucketError: the file is damaged, or changed during every attempt.
    """
    key = run_history_file(index)
    for _ in range(_ATTEMPTS):
        stored = bucket.read(key)
        with TestRuns(stored[0] if stored else b"") as history:
            new = sum(history.add(run, results) for run, results in runs)
            if not new:
                return 0
            try:
                bucket.put_if_match(key, history.dump(), etag=stored[1].etag if stored else None)
            except ConflictError:
                continue
            return new
    raise BucketError(f"{key} changed during each of {_ATTEMPTS} attempts.", hint="Run the command again.")
