"""Upper bounds of the cost of a build."""

from __future__ import annotations

from collections.abc import Sequence

from kernels.modules import KernelModule, ModuleKind

HOST_SHARE = 0.25
"""Share of the host pass in the seconds of a generated unit; the rest is the cost of one target."""


def bound(
    modules: Sequence[KernelModule],
    wanted: Sequence[str],
    attention: str,
) -> tuple[int, float]:
    """Return the most that a build without stored results costs, for all targets.

    Args:
        attention: value of `--attention`.

    Returns:
        The number of compiler and linker runs, and CPU seconds.
    """
    steps = 0
    seconds = 0.0
    for module in modules:
        own = sum(1 for name in wanted if module.supports(name))
        steps += own * len(module.units)
        seconds += own * sum(unit.seconds for unit in module.units)
        if module.kind is not ModuleKind.DEVICE_LIB:
            # A file that libraries share is counted once per library.
            steps += 1 + len(module.host)
            seconds += module.seconds
            continue
        count = 0
        for generator in module.generators:
            count += generator.counts(generator.pattern(attention))[1]
        steps += count * (1 + own)
        seconds += count * module.seconds * (HOST_SHARE + (1 - HOST_SHARE) * own)
    return steps, seconds
