"""What a run leaves behind: checks for the evidence, JUnit XML, compact results, logs; all but the upload is pure."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

from core.model import Finding, Severity
from promotion.evidence.evidence import ENVIRONMENT
from promotion.gates.common.gate import Check, error
from promotion.gates.common.junit import clean
from promotion.gates.device.preflight import PreflightItem
from promotion.gates.device.results import TestResult, TestVerdict, counts, dump_results
from promotion.storage.bucket import Bucket, sha256_of
from promotion.storage.keys import StagedSet

RESULTS, JUNIT, LOGS = "results.json.gz", "junit.xml.gz", "logs.tar.gz"
_MESSAGE_CHARACTERS = 4_000
MAX_LISTED_TESTS = 500
"""So many tests are told of one by one; of a set that is broken through and through, nobody reads more."""
_LISTED_VERDICTS = (TestVerdict.FAILED, TestVerdict.CRASHED, TestVerdict.FLAKY, TestVerdict.ENVIRONMENT)
_FIRST_CHARACTERS = 300
_LOG_NAMES = ("output.log", "*.crash", "*.jsonl", "plan.json", "outcome.json")
_LOG_BYTES = 8 << 20
"""Of each log; more is cut off in front."""

_WRITE_DOWN = "What may stay so is written down in promotion/evidence/ledgers/flakes.toml."
_NEWEST_FIRST = "(most recent call first)"
"""Says faulthandler; other tracebacks have the newest call last."""

KnownFlake = Callable[[str], str]
"""Why it is no news that a test is flaky; empty when it is."""
Reproduce = Callable[[str], str]
"""The command that runs one test again."""


def checks_of_preflight(items: Iterable[PreflightItem], target: str) -> Iterator[Check]:
    """A check for each thing that was looked at beforehand; they count for nothing, since no test is among them."""
    for item in items:
        found = []
        if item.problem:
            text = f"{item.name}: {item.problem}."
            found.append(error(ENVIRONMENT, text[0].upper() + text[1:], item.remedy))
        elif item.note:
            text = f"{item.name}: {item.note}."
            found.append(Finding(code="preflight-note", severity=Severity.WARNING, message=text, remedy=""))
        yield Check(
            name=f"preflight: {item.name}", findings=tuple(found), target=target, times=0, details=dict(item.facts)
        )


def checks_of_tests(
    results: Sequence[TestResult], target: str, reproduce: Reproduce, known_flake: KnownFlake
) -> Iterator[Check]:
    """Checks for all tests: one for each that is worth a word, one for all of a file that are not.

    A flake that is no news counts as a known failure; one that is has to be looked at, and fails.
    """
    yield from _of_many(results, target)
    worth = [result for result in results if result.verdict in _LISTED_VERDICTS]
    for result in worth[:MAX_LISTED_TESTS]:
        yield _of_one(result, target, reproduce, known_flake(result.id))
    more = Counter((result.file, result.verdict, bool(known_flake(result.id))) for result in worth[MAX_LISTED_TESTS:])
    for (file, verdict, known), times in more.items():
        text = f"{file}: {times} more {verdict}"
        if verdict is TestVerdict.ENVIRONMENT:
            yield Check(name=text, skipped=verdict.value, target=target, times=times)
        elif known:
            yield Check(name=text, known=verdict.value, target=target, times=times)
        else:
            found = (error(f"test-{verdict}", f"{text}.", "See the results beside the evidence."),)
            yield Check(name=text, findings=found, target=target, times=times)


def check_of_empty_shard(shard: str, target: str) -> Check:
    """The check for a shard that got no test, since there are more shards: nothing was run, and nothing is wrong."""
    return Check(name=f"shard {shard}", skipped="there are more shards than tests", target=target)


def _of_one(result: TestResult, target: str, reproduce: Reproduce, known: str) -> Check:
    """The check for a test that is worth a word.

    Args:
        known: why it is no news that it is flaky; empty when it is.
    """
    details = {
        "seconds": result.seconds,
        "attempts": result.attempts,
        "worker": result.worker,
        "device": result.device,
        "error": excerpt(result.message),
    }
    said = headline(result.message)
    if result.verdict is TestVerdict.ENVIRONMENT:
        return Check(name=result.id, skipped=f"environment: {said}", target=target, details=details)
    if result.verdict is TestVerdict.FLAKY:
        why = f"flaky: {said}; it passed in a fresh process"
        if known:
            return Check(name=result.id, known=f"{why} ({known})", target=target, details=details)
        text, remedy = f"{result.id} {why}; nobody knew that it does.", f"Run `{reproduce(result.id)}`. {_WRITE_DOWN}"
        found = error("test-first-flake", text, remedy)
    else:
        text = f"{result.id} {result.verdict}: {said}".rstrip(".") + "."
        found = error(f"test-{result.verdict}", text, f"Run `{reproduce(result.id)}`.")
    return Check(name=result.id, findings=(found,), target=target, details=details)


def _of_many(results: Sequence[TestResult], target: str) -> Iterator[Check]:
    passed: dict[str, list[TestResult]] = defaultdict(list)
    skipped = Counter[tuple[str, str, str]]()
    for result in results:
        if result.verdict is TestVerdict.PASSED:
            passed[result.file].append(result)
        elif result.verdict is TestVerdict.SKIPPED:
            skipped[result.file, headline(result.message), result.entry] += 1
        elif result.verdict is TestVerdict.NOT_RUN:
            skipped[result.file, "not run", ""] += 1
    for file, those in passed.items():
        seconds = round(sum(result.seconds for result in those), 3)
        yield Check(name=file, target=target, times=len(those), details={"tests": len(those), "seconds": seconds})
    for (file, why, entry), times in skipped.items():
        name, details = f"{file}: {why}", {"tests": times, **({"entry": entry} if entry else {})}
        yield Check(name=name, skipped=why or "no reason given", target=target, times=times, details=details)


def excerpt(message: str) -> str:
    """The part of what a test said that says most: the end, or the beginning of what a crash left."""
    return message[:_MESSAGE_CHARACTERS] if _NEWEST_FIRST in message else message[-_MESSAGE_CHARACTERS:]


def first_lines(message: str, lines: int) -> list[str]:
    """So many lines of an excerpt, for people."""
    every = message.splitlines()
    return every[:lines] if _NEWEST_FIRST in message else every[-lines:]


def headline(message: str) -> str:
    """The one line of a failure that says most: pytest's last line with an E, else the first."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    marked = [line[1:].strip() for line in lines if line.startswith("E ")]
    line = marked[0] if marked else lines[0] if lines else ""
    return line[:_FIRST_CHARACTERS]


def to_junit(results: Iterable[TestResult], name: str, reproduce: Reproduce) -> bytes:
    """JUnit XML, a suite for each file."""
    files: dict[str, list[TestResult]] = defaultdict(list)
    for result in results:
        files[result.file].append(result)
    root = ET.Element("testsuites", name=name)
    for file, those in sorted(files.items()):
        found = counts(those)
        bad = {"failures": found[TestVerdict.FAILED], "errors": found[TestVerdict.CRASHED]}
        silent = (TestVerdict.SKIPPED, TestVerdict.NOT_RUN, TestVerdict.ENVIRONMENT)
        numbers = {"tests": len(those), **bad, "skipped": sum(found[verdict] for verdict in silent)}
        time = f"{sum(result.seconds for result in those):.3f}"
        attributes = {"name": clean(file), "time": time, **{key: str(number) for key, number in numbers.items()}}
        suite = ET.SubElement(root, "testsuite", attributes)
        suite.extend(_case(result, reproduce) for result in those)
    data: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return data + b"\n"


def _case(result: TestResult, reproduce: Reproduce) -> ET.Element:
    name = result.id.removeprefix(f"{result.file}::")
    case = ET.Element("testcase", classname=clean(result.file), name=clean(name), time=f"{result.seconds:.3f}")
    line = clean(headline(result.message))
    match result.verdict:
        case TestVerdict.FAILED | TestVerdict.CRASHED:
            kind = "failure" if result.verdict is TestVerdict.FAILED else "error"
            element = ET.SubElement(case, kind, type=result.verdict.value, message=line)
            element.text = clean(f"{result.message}\n\n{reproduce(result.id)}")
        case TestVerdict.SKIPPED:
            ET.SubElement(case, "skipped", message=f"{line} ({result.entry})" if result.entry else line)
        case TestVerdict.NOT_RUN | TestVerdict.ENVIRONMENT:
            ET.SubElement(case, "skipped", message=f"{result.verdict.value}: {line}")
        case TestVerdict.FLAKY:
            ET.SubElement(case, "system-out").text = clean(f"flaky: {result.message}")
        case TestVerdict.PASSED:
            pass
    return case


def pack(data: bytes) -> bytes:
    """Compressed; equal bytes give equal bytes."""
    return gzip.compress(data, mtime=0)


def pack_logs(folder: Path) -> bytes:
    """What the sessions of a run wrote, as one archive without times and owners."""
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for path in sorted({found for name in _LOG_NAMES for found in folder.glob(f"*/{name}")}):
            data = path.read_bytes()[-_LOG_BYTES:]
            entry = tarfile.TarInfo(str(path.relative_to(folder)))
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def attachments(results: Sequence[TestResult], folder: Path, name: str, reproduce: Reproduce) -> dict[str, bytes]:
    """Everything that is put beside the evidence, by kind."""
    return {
        RESULTS: pack(dump_results(results)),
        JUNIT: pack(to_junit(results, name, reproduce)),
        LOGS: pack_logs(folder),
    }


def upload(
    bucket: Bucket, staged: StagedSet, gate: str, target: str, files: Mapping[str, bytes]
) -> dict[str, dict[str, str]]:
    """Put files beside the set, each once; returns kind -> its name there and its sha256."""
    told = {}
    for kind, data in files.items():
        sha256 = sha256_of(data)
        key = staged.evidence_more(gate, target, f"{sha256[:16]}.{kind}")
        bucket.put_if_absent(key, data, sha256=sha256)
        told[kind] = {"name": key.removeprefix(staged.evidence), "sha256": sha256}
    return told
