"""Results of tests, and the file that stores them beside evidence."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, ClassVar

from core.frozen import frozen
from core.records import convert, read_json

SCHEMA_VERSION = 1
FLAKE = "test-first-flake"
"""Code of the finding about a flaky test without an exception."""
FAILURES = (FLAKE, "test-failed", "test-crashed")
"""Codes of the findings about failing tests without an exception."""


class TestVerdict(enum.StrEnum):
    """Final verdict on a test.

    `flaky` tests failed, then passed in a fresh process; `environment` means that the
    machine caused the failure; `crashed` tests ended or hung their process; `not run`
    tests were collected and never finished.
    """

    __test__ = False

    PASSED = "passed"
    FAILED = "failed"
    FLAKY = "flaky"
    ENVIRONMENT = "environment"
    CRASHED = "crashed"
    SKIPPED = "skipped"
    NOT_RUN = "not run"


@frozen
class TestResult:
    """One test and its verdict.

    Attributes:
        id: pytest's node id, relative to the root of the suite; the file alone if it
            cannot be collected.
        seconds: duration of the first attempt.
        attempts: number of attempts.
        message: message of the deciding attempt.
        worker, device: worker and device of the deciding attempt.
    """

    __test__: ClassVar[bool] = False

    id: str
    verdict: TestVerdict
    seconds: float = 0.0
    attempts: int = 0
    message: str = ""
    worker: str = ""
    device: str = ""

    @property
    def file(self) -> str:
        """The file of the test."""
        return self.id.partition("::")[0]


def dump_results(results: Iterable[TestResult]) -> bytes:
    """Return compact JSON with a list of values for each test; equal results give equal bytes."""
    names = [field.name for field in fields(TestResult)]
    rows = []
    for result in sorted(results, key=lambda result: result.id):
        rows.append([getattr(result, name) for name in names])
    body = {"schema": SCHEMA_VERSION, "fields": names, "tests": rows}
    return json.dumps(body, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"


@frozen
class _ResultFile:
    """A table of results: names of the columns, and the values of each test."""

    fields: tuple[str, ...]
    tests: tuple[tuple[Any, ...], ...]


def load_results(data: bytes, what: str) -> tuple[TestResult, ...]:
    """Parse the output of `dump_results`.

    FormatError with the source `what` if the data is invalid.
    """
    table = read_json(data, _ResultFile, what, schema=SCHEMA_VERSION)
    rows = [dict(zip(table.fields, row, strict=False)) for row in table.tests]
    return convert(rows, tuple[TestResult, ...], what)
