"""Evidence of a run from the results of all its shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from core.errors import GateError
from core.model import Finding, Severity
from promotion.evidence.test_results import TestResult, TestVerdict, dump_results
from promotion.gates.common.gate import Check, Gate, GateContext
from promotion.gates.device import evidence
from promotion.gates.device.baseline import baseline, check_ledgers, compare_with_baseline
from promotion.gates.device.config import DeviceGateConfig, reproduce
from promotion.gates.device.lease import JaxPlatform
from promotion.gates.device.results import counts, executed
from promotion.gates.device.run import RUN, raise_unless_complete
from promotion.gates.device.shards import ShardResult, ShardResults


def make_gate(config: DeviceGateConfig, run: ShardResults) -> Gate:
    """Return a gate that judges tests which other runners ran."""
    return Gate(
        name=config.gate_name,
        tier=config.tier,
        per_target=config.platform is JaxPlatform.ROCM,
        run=lambda context: _checks(context, config, run),
        settings=run.settings,
    )


def join_results(shards: Sequence[ShardResult]) -> tuple[TestResult, ...]:
    """Return the results of all shards; a file that several could not collect gets the worst verdict.

    Raises:
        GateError: two shards ran the same test, so they were split differently.
    """
    joined: dict[str, TestResult] = {}
    order = (TestVerdict.CRASHED, TestVerdict.FAILED, TestVerdict.ENVIRONMENT, TestVerdict.NOT_RUN, TestVerdict.FLAKY)
    rank = {verdict: number for number, verdict in enumerate((*order, TestVerdict.SKIPPED, TestVerdict.PASSED))}
    for shard in shards:
        for result in shard.results:
            other = joined.get(result.id)
            if other is not None and "::" in result.id:
                hint = "Run all shards again with the same version of the gate."
                raise GateError(f"{result.id} was run by two shards.", hint=hint)
            if other is None or rank[result.verdict] < rank[other.verdict]:
                joined[result.id] = result
    return tuple(joined[test] for test in sorted(joined))


def _checks(context: GateContext, config: DeviceGateConfig, run: ShardResults) -> Iterator[Check]:
    results = join_results(run.shards)
    options = {result.id: shard.run.get("options", config.options) for shard in run.shards for result in shard.results}

    def again(test: str) -> str:
        return reproduce(options[test], str(context.staged), test)

    yield from evidence.checks_of_tests(results, run.target, again, config.known_flake)
    before = baseline(context.bucket, context.staged.index, config.gate_name, run.target, run.settings)
    skipped = sum(result.verdict is TestVerdict.SKIPPED for result in results)
    findings = [
        *compare_with_baseline(executed(results), skipped, before),
        *check_ledgers(config.known, results, run.settings),
    ]
    notes = dict.fromkeys(note for shard in run.shards for note in shard.notes)
    findings += [Finding(code="device-note", severity=Severity.WARNING, message=note, remedy="") for note in notes]
    junit = evidence.to_junit(results, f"{config.gate_name}.{run.target}", again)
    files = {evidence.RESULTS: evidence.pack(dump_results(results)), evidence.JUNIT: evidence.pack(junit)}
    details = {
        "suite": config.suite,
        "verdicts": {verdict.value: number for verdict, number in counts(results).items()},
        "files": evidence.upload(context.bucket, context.staged, config.gate_name, run.target, files),
        "shards": [dict(shard.run) for shard in run.shards],
        "baseline": before.set_digest,
    }
    yield Check(name=RUN, findings=tuple(findings), target=run.target, times=0, details=details)
    problems = tuple(f"shard {shard.shard}: {problem}" for shard in run.shards for problem in shard.problems)
    raise_unless_complete(problems, len(results), results)
