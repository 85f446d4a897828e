"""Gate that merges the results of shards, and judges their tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from promotion.gates.common.gate_context import Check, Gate, GateContext, warning
from promotion.gates.device.baseline import raise_unless_complete, run_check
from promotion.gates.device.config import DeviceGateConfig, reproduce
from promotion.gates.device.device_evidence import checks_of_tests
from promotion.gates.device.device_run import NOTE
from promotion.gates.device.lease import JaxPlatform
from promotion.gates.device.shards import ShardResult, join_results


def make_merge_gate(config: DeviceGateConfig, shards: Sequence[ShardResult]) -> Gate:
    """Return a gate that merges the shards of other runners and judges their tests."""
    return Gate(
        name=config.gate_name,
        tier=config.tier,
        per_target=config.platform is JaxPlatform.ROCM,
        run=lambda context: merged_checks(context, config, shards),
        settings=shards[0].settings,
    )


def merged_checks(
    context: GateContext, config: DeviceGateConfig, shards: Sequence[ShardResult]
) -> Iterator[Check]:
    """Yield the checks of all tests of a run, and the check of the run.

    Raises:
        GateError: the run is incomplete, or two shards ran the same test.
        MachineError: the machines caused all problems.
    """
    results = join_results(shards)
    target = shards[0].target
    options: dict[str, Mapping[str, str]] = {}
    found: list[tuple[str, str]] = []
    problems: list[str] = []
    for shard in shards:
        used = shard.run.get("options", config.options)
        options |= {result.id: used for result in shard.results}
        found += [(NOTE, note) for note in shard.notes]
        found += shard.warnings
        problems += [f"shard {shard.shard}: {problem}" for problem in shard.problems]

    def again(test: str) -> str:
        return reproduce(options[test], str(context.staged), test)

    yield from checks_of_tests(results, target, again, config.exceptions)
    yield run_check(
        context,
        config,
        target,
        shards[0].settings,
        results,
        again,
        details={
            "suite": config.suite,
            "shards": [dict(shard.run) for shard in shards],
        },
        warnings=[warning(code, text) for code, text in dict.fromkeys(found)],
    )
    raise_unless_complete(tuple(problems), len(results), results)
