"""History of tests in an index: the outcome of each test in each run, in one SQLite file per index.

It provides durations of tests, earlier flakes, and numbers of skipped tests by reason. All of it can be rebuilt from
the evidence. It is not signed and has no effect on promotion.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Self

from core.errors import BucketError
from promotion.evidence.known_tests import pattern_of
from promotion.gates.device.results import TestResult, TestVerdict
from promotion.storage.bucket import Bucket, ConflictError
from promotion.storage.keys import run_history_file

MOST_RUNS = 60
"""Number of newest runs kept for each family, platform and suite."""
_ATTEMPTS = 8
_SCHEMA_VERSION = 2
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
    finished text not null
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
_FROM_1 = "alter table outcome add column why text not null default ''; pragma user_version = 2;"
_WHY_CHARACTERS = 80


@dataclass(frozen=True, kw_only=True, slots=True)
class SuiteRun:
    """A run of a suite on one machine.

    Attributes:
        evidence: SHA-256 of its evidence; each evidence is recorded once.
        family: exact name; empty on a CPU.
        finished: UTC, ISO 8601.
    """

    evidence: str
    set_digest: str
    platform: str
    family: str
    jax: str
    rocm: str
    suite: str
    finished: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedOutcome:
    """Outcome of one test in one run."""

    test: str
    verdict: TestVerdict
    seconds: float
    attempts: int
    run: SuiteRun


@dataclass(frozen=True, kw_only=True, slots=True)
class RunTally:
    """Summary of one run.

    Attributes:
        verdicts: number of tests per verdict that occurred.
        skipped: ledger entry or reason in the suite -> number of skipped tests.
        seconds: total duration of the tests.
    """

    run: SuiteRun
    verdicts: Mapping[TestVerdict, int]
    skipped: Mapping[str, int]
    seconds: float


_RUN = tuple(field.name for field in fields(SuiteRun))


class TestRuns:
    """History of one index in memory; a context manager.

    Args:
        data: content of the file; empty creates a new history.

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
                if version == 1:
                    self._db.executescript(_FROM_1)
                    version = _SCHEMA_VERSION
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
                hint="Remove it and rebuild it with `ci_build history INDEX --tests --rebuild`.",
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def dump(self) -> bytes:
        """Return the content of the file; equal histories that were written in the same order give equal bytes."""
        self._db.execute("vacuum")
        return self._db.serialize()

    def add(self, run: SuiteRun, results: Collection[TestResult], *, keep: int = MOST_RUNS) -> bool:
        """Record a run and drop the oldest ones of its family; return False if it was recorded before."""
        with self._transaction():
            if self._db.execute("select 1 from run where evidence = ?", (run.evidence,)).fetchone():
                return False
            row = self._db.execute(
                "insert into run (evidence, set_digest, platform, family, jax, rocm, suite, finished)"
                " values (?, ?, ?, ?, ?, ?, ?, ?)",
                (run.evidence, run.set_digest, run.platform, run.family, run.jax, run.rocm, run.suite, run.finished),
            ).lastrowid
            self._db.executemany("insert or ignore into test (name) values (?)", [(item.id,) for item in results])
            self._db.executemany(
                "insert into outcome select id, ?, ?, ?, ?, ? from test where name = ?",
                [
                    (row, item.verdict.value, round(item.seconds, 3), item.attempts, _why(item), item.id)
                    for item in results
                ],
            )
            self._db.execute(
                "delete from run where platform = ? and family = ? and suite = ? and id not in"
                " (select id from run where platform = ? and family = ? and suite = ?"
                " order by finished desc, id desc limit ?)",
                (run.platform, run.family, run.suite) * 2 + (keep,),
            )
            self._db.execute("delete from test where id not in (select test from outcome)")
        return True

    def flaky_before(self, *, platform: str, family: str, but: str = "") -> frozenset[str]:
        """Return the tests that were flaky in a recorded run of this family.

        Args:
            platform: rocm, cpu or cuda.
            family: exact name; empty on a CPU.
            but: digest of the set under test, whose own runs do not make a flake known.
        """
        rows = self._db.execute(
            "select distinct name from outcome join test on test.id = test join run on run.id = run"
            " where platform = ? and family = ? and verdict = ? and set_digest != ?",
            (platform, family, TestVerdict.FLAKY, but),
        )
        return frozenset(name for (name,) in rows)

    def families(self) -> frozenset[str]:
        """Return the families of recorded runs; runs on CPUs have none."""
        return frozenset(name for (name,) in self._db.execute("select distinct family from run where family != ''"))

    def outcomes(
        self, pattern: str = "*", *, family: str | None = None, limit: int = 1000
    ) -> Iterator[RecordedOutcome]:
        """Yield outcomes of tests, newest run first.

        Args:
            pattern: of node ids, in which only * and ? are special.
            family: family of the runs; None selects all.
            limit: maximum number of outcomes.
        """
        yield from self._outcomes(pattern_of(pattern), family, limit)

    def tallies(self, *, family: str | None = None, limit: int = 1000) -> Iterator[RunTally]:
        """Yield summaries of runs, newest first; the arguments are those of `outcomes`."""
        runs = self._db.execute(
            "select evidence, set_digest, platform, family, jax, rocm, suite, finished, id"
            " from run where ? is null or family = ? order by finished desc, id desc limit ?",
            (family, family, limit),
        ).fetchall()
        for *columns, number in runs:
            verdicts, skipped, seconds = Counter[TestVerdict](), Counter[str](), 0.0
            rows = self._db.execute(
                "select verdict, why, count(*), sum(seconds) from outcome where run = ? group by verdict, why",
                (number,),
            )
            for verdict, why, count, duration in rows:
                verdicts[TestVerdict(verdict)] += count
                seconds += duration
                if verdict == TestVerdict.SKIPPED:
                    skipped[why] += count
            yield RunTally(run=_run(columns), verdicts=verdicts, skipped=skipped, seconds=round(seconds, 3))

    def outcomes_of(self, test: str, *, limit: int) -> Iterator[RecordedOutcome]:
        """Yield the outcomes of one test by its node id, newest run first."""
        yield from self._outcomes(re.compile(re.escape(test)), None, limit)

    def _outcomes(self, pattern: re.Pattern[str], family: str | None, limit: int) -> Iterator[RecordedOutcome]:
        rows = self._db.execute(
            "select name, verdict, seconds, attempts,"
            " evidence, set_digest, platform, family, jax, rocm, suite, finished"
            " from outcome join test on test.id = test join run on run.id = run"
            " order by finished desc, run.id desc, name"
        )
        for name, verdict, seconds, attempts, *columns in rows:
            if pattern.fullmatch(name) is None or (family is not None and columns[3] != family):
                continue
            if limit <= 0:
                return
            limit -= 1
            verdict = TestVerdict(verdict)
            yield RecordedOutcome(test=name, verdict=verdict, seconds=seconds, attempts=attempts, run=_run(columns))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("begin")
        try:
            yield
        except BaseException:
            self._db.execute("rollback")
            raise
        self._db.execute("commit")


def _run(columns: Sequence[str]) -> SuiteRun:
    return SuiteRun(**dict(zip(_RUN, columns, strict=True)))


def _why(result: TestResult) -> str:
    """Return the ledger entry or the reason in the suite for which a test was skipped; "" if it ran."""
    if result.verdict is not TestVerdict.SKIPPED:
        return ""
    return result.entry if result.entry not in ("", "suite") else " ".join(result.message.split())[:_WHY_CHARACTERS]


def read_runs(bucket: Bucket, index: str) -> TestRuns:
    """Return the history of an index; a new one if nothing was tested yet."""
    found = bucket.read(run_history_file(index))
    return TestRuns(found[0] if found else b"")


def record(bucket: Bucket, index: str, runs: Sequence[tuple[SuiteRun, Collection[TestResult]]]) -> int:
    """Record runs, preserving concurrent changes; recorded runs never change.

    Returns:
        The number of new runs.

    Raises:
        BucketError: too many concurrent writes, or the file is damaged.
    """
    key = run_history_file(index)
    for _ in range(_ATTEMPTS):
        found = bucket.read(key)
        with TestRuns(found[0] if found else b"") as history:
            new = sum(history.add(run, results) for run, results in runs)
            if not new:
                return 0
            try:
                bucket.put_if_match(key, history.dump(), etag=found[1].etag if found else None)
            except ConflictError:
                continue
            return new
    raise BucketError(f"Too many concurrent writes: {key}.", hint="Try again; no data was lost.")
