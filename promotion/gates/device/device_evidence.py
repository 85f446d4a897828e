"""Checks, compact results and logs that a run stores as evidence."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from core.digests import sha256_of
from core.model import Evidence, Finding, to_json
from promotion.evidence.evidence import check_records
from promotion.evidence.test_results import (
    FLAKE,
    TestResult,
    TestVerdict,
)
from promotion.gates.common.gate_context import Check, error
from promotion.gates.device.results import NEWEST_FIRST, by_cause, cause_of, headline
from promotion.policy.exceptions import PolicyException
from promotion.policy.families import GATE
from promotion.storage.bucket import Bucket
from promotion.storage.object_keys import StagedSet

RESULTS = "results.json.gz"
LOGS = "logs.tar.gz"
_MESSAGE_CHARACTERS = 4_000
NAMED, _EXAMPLES = 3, 10
"""Number of failures of one cause that have checks of their own.

Number of names that a common check lists.
"""
_LISTED_VERDICTS = (
    TestVerdict.FAILED,
    TestVerdict.CRASHED,
    TestVerdict.FLAKY,
    TestVerdict.ENVIRONMENT,
)
_LOG_NAMES = ("output.log", "*.crash", "*.jsonl", "plan.json")
_LOG_BYTES = 8 << 20
"""Maximum size of each log; of a longer log, only the end is stored."""

_FLAKE_HINT = (
    "To accept the flake, add the exception that `ci policy` prints to"
    " promotion/policy.toml."
)

Reproduce = Callable[[str], str]
"""Function that returns the command that runs a test again."""


def checks_of_tests(
    results: Sequence[TestResult],
    target: str,
    reproduce: Reproduce,
    exceptions: Iterable[PolicyException],
) -> Iterator[Check]:
    """Yield a check for each test that needs attention, and one check per file for the other tests.

    More than `NAMED` failures of one cause are one check.

    A failing or flaky test that an exception names counts as a known failure, and the
    policy decides whether the exception holds for a channel.

    Args:
        exceptions: valid exceptions of the set.
    """
    excused: dict[str, list[PolicyException]] = defaultdict(list)
    yield from _of_many(results, target)
    bad = [result for result in results if result.verdict in _LISTED_VERDICTS]
    for entry in exceptions:
        for result in bad:
            if entry.covers_test(result.id, GATE, target):
                excused[result.id].append(entry)
    listed = [result for result in bad if result.id in excused]
    others = [result for result in bad if result.id not in excused]
    for group in by_cause(others).values():
        if len(group) > NAMED:
            yield _of_failures(group, target, reproduce)
        else:
            listed += group
    for result in listed:
        named = excused.get(result.id, ())
        yield _of_failures([result], target, reproduce, named)


def _of_failures(
    group: Sequence[TestResult],
    target: str,
    reproduce: Reproduce,
    exceptions: Sequence[PolicyException] = (),
) -> Check:
    """Return the check for failures of one cause; the results beside the evidence list all.

    Args:
        exceptions: exceptions that name the only test of the group.
    """
    first = group[0]
    count = len(group)
    verdict = first.verdict
    cause = headline(first.message) if count == 1 else cause_of(first.message)
    details: dict[str, Any] = {
        "tests": count,
        "first": [result.id for result in group[:_EXAMPLES]],
        "seconds": round(sum(result.seconds for result in group), 3),
        "attempts": sum(result.attempts for result in group),
        "worker": first.worker,
        "device": first.device,
        "error": excerpt(first.message),
    }
    known = ""
    skipped = ""
    findings: tuple[Finding, ...] = ()
    why = f"{verdict}: {cause}".rstrip(".")
    if verdict is TestVerdict.FLAKY:
        why += "; passed in a fresh process"
    if verdict is TestVerdict.ENVIRONMENT:
        skipped = why
    elif exceptions:
        known = f"{why} (exception {'; '.join(map(str, exceptions))})"
        details["exceptions"] = [*map(to_json, exceptions)]
    else:
        text = f"{first.id} {why}."
        code = f"test-{verdict}"
        remedy = f"Run `{reproduce(first.id)}`."
        if count > 1:
            text = f"{count} tests {why}. The first is {first.id}."
        elif verdict is TestVerdict.FLAKY:
            code = FLAKE
            remedy += f" {_FLAKE_HINT}"
        findings = (error(code, text, remedy),)
    return Check(
        name=first.id if count == 1 else f"{count} x {cause}",
        findings=findings,
        skipped=skipped,
        known=known,
        target=target,
        times=count,
        details=details,
    )


def _of_many(results: Sequence[TestResult], target: str) -> Iterator[Check]:
    passed: dict[str, list[TestResult]] = defaultdict(list)
    skipped = Counter[tuple[str, str]]()
    for result in results:
        if result.verdict is TestVerdict.PASSED:
            passed[result.file].append(result)
        elif result.verdict is TestVerdict.SKIPPED:
            skipped[result.file, headline(result.message)] += 1
        elif result.verdict is TestVerdict.NOT_RUN:
            skipped[result.file, "not run"] += 1
    for file, tests in passed.items():
        seconds = round(sum(result.seconds for result in tests), 3)
        details: dict[str, Any] = {"tests": len(tests), "seconds": seconds}
        yield Check(name=file, target=target, times=len(tests), details=details)
    for (file, why), times in skipped.items():
        yield Check(
            name=f"{file}: {why}",
            skipped=why or "no reason given",
            target=target,
            times=times,
            details={"tests": times},
        )


def excerpt(message: str) -> str:
    """Return the most informative part of a message.

    Its end, or the beginning of a crash's traceback.
    """
    return (
        message[:_MESSAGE_CHARACTERS]
        if NEWEST_FIRST in message
        else message[-_MESSAGE_CHARACTERS:]
    )


def first_lines(message: str, lines: int) -> list[str]:
    """Return the most informative lines of an excerpt."""
    every = message.splitlines()
    return every[:lines] if NEWEST_FIRST in message else every[-lines:]


def pack(data: bytes) -> bytes:
    """Compress reproducibly."""
    return gzip.compress(data, mtime=0)


def pack_logs(folder: Path) -> bytes:
    """Return a reproducible archive of the sessions' logs, without times and owners."""
    out = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        logs: set[Path] = set()
        for name in _LOG_NAMES:
            logs.update(folder.glob(f"*/{name}"))
        for path in sorted(logs):
            data = path.read_bytes()[-_LOG_BYTES:]
            entry = tarfile.TarInfo(str(path.relative_to(folder)))
            entry.size = len(data)
            entry.mode = 0o644
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def upload(
    bucket: Bucket,
    staged: StagedSet,
    gate: str,
    target: str,
    files: Mapping[str, bytes],
) -> dict[str, dict[str, str]]:
    """Store files beside the set, unless they exist; return kind -> name and sha256."""
    uploaded = {}
    for kind, data in files.items():
        sha256 = sha256_of(data)
        key = staged.evidence_file(gate, target, f"{sha256[:16]}.{kind}")
        bucket.put_if_absent(key, data, sha256=sha256)
        uploaded[kind] = {"name": key.removeprefix(staged.evidence), "sha256": sha256}
    return uploaded


def results_names(evidence: Evidence) -> Iterator[str]:
    """Yield the names of the files with a run's results, relative to the folder of the evidence."""
    for check in check_records(evidence):
        files = check.get("files")
        results = files.get(RESULTS) if isinstance(files, dict) else None
        if isinstance(results, dict) and "name" in results:
            yield str(results["name"])
