"""What became of every test, run by run: one SQLite file for each index, beside its staged sets.

It says how long tests take, by which shards are balanced, and which were flaky before. It holds nothing that the
evidence does not hold, is signed by nobody, and promotes nothing.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from ci_build.errors import BucketError
from promotion.bucket import Bucket, ConflictError
from promotion.gates.device.results import TestResult, TestVerdict
from promotion.known_tests import pattern_of
from promotion.layout import runs_file

MOST_RUNS = 60
"""For each family, platform and suite so many runs are kept, the newest ones."""
_ATTEMPTS = 8
_SCHEMA_VERSION = 1
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
    primary key (test, run)
) without rowid;
create index outcome_of_run on outcome (run);
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run of a suite on one machine.

    Attributes:
        evidence: SHA-256 of the evidence that it ended in; the same one is kept once.
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
class Outcome:
    """What became of one test in one run."""

    test: str
    verdict: TestVerdict
    seconds: float
    attempts: int
    run: Run


class TestRuns:
    """The history of one index, in memory; a context manager.

    Args:
        data: the file; empty for a new one.

    Raises:
        BucketError: the file is no such history.
    """

    __test__ = False

    def __init__(self, data: bytes = b"") -> None:
        self._db = sqlite3.connect(":memory:", isolation_level=None)
        try:
            if data:
                self._db.deserialize(data)
                (version,) = self._db.execute("pragma user_version").fetchone()
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
                hint="Remove it; `ci_build history INDEX --tests --rebuild` makes it anew from the evidence.",
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def dump(self) -> bytes:
        """The file as it is stored; equal histories, written in the same order, are equal bytes."""
        self._db.execute("vacuum")
        return self._db.serialize()

    def add(self, run: Run, results: Collection[TestResult], *, keep: int = MOST_RUNS) -> bool:
        """Write a run down, and let the oldest of its family go; False when it is there already."""
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
                "insert into outcome select id, ?, ?, ?, ? from test where name = ?",
                [(row, item.verdict.value, round(item.seconds, 3), item.attempts, item.id) for item in results],
            )
            self._db.execute(
                "delete from run where platform = ? and family = ? and suite = ? and id not in"
                " (select id from run where platform = ? and family = ? and suite = ?"
                " order by finished desc, id desc limit ?)",
                (run.platform, run.family, run.suite) * 2 + (keep,),
            )
            self._db.execute("delete from test where id not in (select test from outcome)")
        return True

    def durations(self, *, platform: str, family: str) -> Mapping[str, float]:
        """Seconds of each test when it last ran to an end; of the same family where that is known, else of any."""
        found: dict[str, float] = {}
        for of in ("%", family):
            rows = self._db.execute(
                "select name, seconds from outcome join test on test.id = test join run on run.id = run"
                " where platform = ? and family like ? and verdict in (?, ?, ?) order by finished, run.id",
                (platform, of, TestVerdict.PASSED, TestVerdict.FAILED, TestVerdict.FLAKY),
            )
            found.update(rows)
        return found

    def flaky_before(self, *, platform: str, family: str, but: str = "") -> frozenset[str]:
        """Tests that were flaky in a run of this family that is still written down.

        Args:
            platform: rocm, cpu or cuda.
            family: exact name; empty on a CPU.
            but: digest of a set whose runs do not count: a flake is no old one because it was seen a moment ago.
        """
        rows = self._db.execute(
            "select distinct name from outcome join test on test.id = test join run on run.id = run"
            " where platform = ? and family = ? and verdict = ? and set_digest != ?",
            (platform, family, TestVerdict.FLAKY, but),
        )
        return frozenset(name for (name,) in rows)

    def families(self) -> frozenset[str]:
        """Those that runs are of; a CPU's have none."""
        return frozenset(name for (name,) in self._db.execute("select distinct family from run where family != ''"))

    def outcomes(self, pattern: str = "*", *, family: str | None = None, limit: int = 1000) -> Iterator[Outcome]:
        """What became of tests, the newest run first.

        Args:
            pattern: of node ids; * and ? stand for anything, all else for itself.
            family: only of this one; None for all.
            limit: at most so many.
        """
        yield from self._outcomes(pattern_of(pattern), family, limit)

    def outcomes_of(self, test: str, *, limit: int) -> Iterator[Outcome]:
        """What became of one test, by its node id, the newest run first."""
        yield from self._outcomes(re.compile(re.escape(test)), None, limit)

    def _outcomes(self, wanted: re.Pattern[str], family: str | None, limit: int) -> Iterator[Outcome]:
        rows = self._db.execute(
            "select name, verdict, seconds, attempts,"
            " evidence, set_digest, platform, family, jax, rocm, suite, finished"
            " from outcome join test on test.id = test join run on run.id = run"
            " order by finished desc, run.id desc, name"
        )
        for name, verdict, seconds, attempts, *told in rows:
            if wanted.fullmatch(name) is None or (family is not None and told[3] != family):
                continue
            if limit <= 0:
                return
            limit -= 1
            names = ("evidence", "set_digest", "platform", "family", "jax", "rocm", "suite", "finished")
            run = Run(**dict(zip(names, told, strict=True)))
            yield Outcome(test=name, verdict=TestVerdict(verdict), seconds=seconds, attempts=attempts, run=run)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("begin")
        try:
            yield
        except BaseException:
            self._db.execute("rollback")
            raise
        self._db.execute("commit")


def read_runs(bucket: Bucket, index: str) -> TestRuns:
    """The history of an index; an empty one where nothing was tested yet."""
    found = bucket.read(runs_file(index))
    return TestRuns(found[0] if found else b"")


def record(bucket: Bucket, index: str, runs: Sequence[tuple[Run, Collection[TestResult]]]) -> int:
    """Write runs down; those that are there already stay as they are. Somebody else's meanwhile are kept, too.

    Returns:
        How many were new.

    Raises:
        BucketError: others write all the time, or the file is damaged.
    """
    key = runs_file(index)
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
    raise BucketError(f"{key} is written by others all the time.", hint="Try again; nothing was lost.")
