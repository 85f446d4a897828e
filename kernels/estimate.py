"""Upper bounds of the cost of a build, and the refusal of long builds that were not asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.errors import RequestError
from kernels.modules import KernelModule, ModuleKind

HOURS_UNASKED = 4.0
"""Maximum CPU hours of a build whose modules were not named: above RMSNorm for all its targets, far below attention
for one.
"""
HOST_SHARE = 0.25
"""Share of a generated unit's seconds that the host pass takes; the rest is per target."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """Upper bound of the work.

    Attributes:
        steps: number of compilers and linkers started.
        seconds: CPU seconds.
    """

    steps: int
    seconds: float


def bound(modules: Sequence[KernelModule], wanted: Sequence[str]) -> Bound:
    """Return the cost of modules of which nothing exists yet, as if each unit had code for each target."""
    steps, seconds = 0, 0.0
    for module in modules:
        own = sum(1 for name in wanted if module.supports(name))
        steps += own * len(module.units)
        seconds += own * sum(unit.seconds for unit in module.units)
        if module.kind is not ModuleKind.DEVICE_LIB:
            # Files that libraries share count for each library.
            steps += 1 + len(module.host)
            seconds += module.seconds
            continue
        count = sum(generator.kept for generator in module.generators) + len(module.compiled)
        steps += count * (1 + own)
        seconds += count * module.seconds * (HOST_SHARE + (1 - HOST_SHARE) * own)
    return Bound(steps=steps, seconds=seconds)


def refuse_unasked(seconds: float, modules: Sequence[KernelModule], named: Sequence[str]) -> None:
    """Refuse a long build unless its modules were named.

    Args:
        seconds: remaining CPU seconds.
        modules: modules to build.
        named: modules of the request; empty if none were named.

    Raises:
        RequestError: the build takes too long and no modules were named.
    """
    if named or seconds <= HOURS_UNASKED * 3600:
        return
    names = ",".join(module.name for module in modules)
    raise RequestError(
        f"All kernel modules would take {seconds / 3600:.0f} hours of CPU, and no modules were named.",
        hint=f"Name the modules: --modules={names} builds all, fewer need --allow-partial. --shard compiles"
        " parts on several machines.",
    )
