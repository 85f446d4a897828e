"""Upper bounds of the cost of a build."""

from __future__ import annotations

from collections.abc import Sequence

from kernels.modules import KernelModule, ModuleKind

HOURS_UNASKED = 4.0
"""Maximum CPU hours of a build without named modules.

Enough for RMSNorm on all its targets, far too few for attention
on one target.
"""
HOST_SHARE = 0.25
"""Share of the host pass in the seconds of a generated unit; the rest is the cost of one target."""


def bound(modules: Sequence[KernelModule], wanted: Sequence[str]) -> tuple[int, float]:
    """Return the most that a build without stored results costs, for all targets.

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
        count = sum(generator.kept for generator in module.generators)
        steps += count * (1 + own)
        seconds += count * module.seconds * (HOST_SHARE + (1 - HOST_SHARE) * own)
    return steps, seconds
