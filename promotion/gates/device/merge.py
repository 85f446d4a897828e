"""Evidence of a run from the results of all its shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from core.errors import GateError
from promotion.evidence.test_results import TestResult, TestVerdict
from promotion.gates.common.gate import Check, Gate, GateContext, warning
from promotion.gates.device.baseline import run_check
from promotion.gates.device.config import DeviceGateConfig, reproduce
from promotion.gates.device.evidence import checks_of_tests
from promotion.gates.device.lease import JaxPlatform
from promotion.gates.device.run import raise_unless_complete
from promotion.gates.device.shards import ShardResult


def make_gate(config: DeviceGateConfig, shards: Sequence[ShardResult]) -> Gate:
    """Return a gate that judges tests which other runners ran."""
    return Gate(
        name=config.gate_name,
        tier=config.tier,
        per_target=config.platform is JaxPlatform.ROCM,
        run=lambda context: _checks(context, config, shards),
        settings=shards[0].settings,
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


def _checks(context: GateContext, config: DeviceGateConfig, shards: Sequence[ShardResult]) -> Iterator[Check]:
    results, target = join_results(shards), shards[0].target
    options = {result.id: shard.run.get("options", config.options) for shard in shards for result in shard.results}

    def again(test: str) -> str:
        return reproduce(options[test], str(context.staged), test)

    yield from checks_of_tests(results, target, again, config.known_flake)
    notes = dict.fromkeys(note for shard in shards for note in shard.notes)
    yield run_check(
        context,
        config,
        target,
        shards[0].settings,
        results,
        again,
        details={"suite": config.suite, "shards": [dict(shard.run) for shard in shards]},
        warnings=[warning("device-note", note) for note in notes],
    )
    problems = tuple(f"shard {shard.shard}: {problem}" for shard in shards for problem in shard.problems)
    raise_unless_complete(problems, len(results), results)
