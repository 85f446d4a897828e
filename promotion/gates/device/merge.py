"""What several runners did, each a part, becomes one word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from core.errors import GateError
from core.model import Finding, Severity
from promotion.gates import Check, Gate, Room
from promotion.gates.device import evidence
from promotion.gates.device.baseline import about_baseline, about_ledgers, baseline
from promotion.gates.device.config import Told, reproduce
from promotion.gates.device.lease import Platform
from promotion.gates.device.shards import Part, Parts
from promotion.gates.device.results import TestResult, TestVerdict, counts, dump_results, executed
from promotion.gates.device.run import RUN, raise_unless_whole


def make_gate(told: Told, parts: Parts) -> Gate:
    """A gate whose tests ran elsewhere."""

    def run(room: Room) -> Iterator[Check]:
        yield from _checks(room, told, parts)

    return Gate(
        name=told.gate_name,
        tier=told.tier,
        per_target=told.platform is Platform.ROCM,
        run=run,
        settings=parts.settings,
    )


def join(parts: Sequence[Part]) -> tuple[TestResult, ...]:
    """The results of all parts; of a file that no part could collect, the worst word.

    Raises:
        GateError: a test that two parts ran, so that they were not dealt out alike.
    """
    joined: dict[str, TestResult] = {}
    order = (TestVerdict.CRASHED, TestVerdict.FAILED, TestVerdict.ENVIRONMENT, TestVerdict.NOT_RUN, TestVerdict.FLAKY)
    rank = {verdict: number for number, verdict in enumerate((*order, TestVerdict.SKIPPED, TestVerdict.PASSED))}
    for part in parts:
        for result in part.results:
            other = joined.get(result.id)
            if other is not None and "::" in result.id:
                hint = "Run all shards again, with the same program."
                raise GateError(f"{result.id} was run by two shards.", hint=hint)
            if other is None or rank[result.verdict] < rank[other.verdict]:
                joined[result.id] = result
    return tuple(joined[test] for test in sorted(joined))


def _again(told: Told, staged: str, parts: Sequence[Part]) -> evidence.Reproduce:
    """A test runs again as it did in its part."""
    options = {result.id: part.run.get("options", told.options) for part in parts for result in part.results}
    return lambda test: reproduce(options[test], staged, test)


def _checks(room: Room, told: Told, parts: Parts) -> Iterator[Check]:
    results = join(parts.parts)
    again = _again(told, str(room.staged), parts.parts)
    yield from evidence.of_tests(results, parts.target, again, told.known_flake)
    before = baseline(room.bucket, room.staged.index, told.gate_name, parts.target, parts.settings)
    skipped = sum(result.verdict is TestVerdict.SKIPPED for result in results)
    found = [*about_baseline(executed(results), skipped, before), *about_ledgers(told.known, results, parts.settings)]
    notes = dict.fromkeys(note for part in parts.parts for note in part.notes)
    found += [Finding(code="device-note", severity=Severity.WARNING, message=note, remedy="") for note in notes]
    name = f"{told.gate_name}.{parts.target}"
    files = {
        evidence.RESULTS: evidence.pack(dump_results(results)),
        evidence.JUNIT: evidence.pack(evidence.to_junit(results, name, again)),
    }
    details = {
        "suite": told.suite,
        "verdicts": {verdict.value: number for verdict, number in counts(results).items()},
        "files": evidence.upload(room.bucket, room.staged, told.gate_name, parts.target, files),
        "shards": [dict(part.run) for part in parts.parts],
        "baseline": before.set_digest,
    }
    yield Check(name=RUN, findings=tuple(found), target=parts.target, times=0, details=details)
    problems = tuple(f"shard {part.shard}: {problem}" for part in parts.parts for problem in part.problems)
    raise_unless_whole(problems, len(results), results)
