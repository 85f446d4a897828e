"""What a build may cost at most, before anything is fetched; and what is never started unless it was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.errors import RequestError
from kernels.modules import Kind, Module

HOURS_UNASKED = 4.0
"""Hours of CPU that a build takes without anybody having named its modules: RMSNorm of Composable Kernel for all its
targets is below, attention for one far above."""
HOST_SHARE = 0.25
"""Of a generated unit's seconds; the rest is for each target."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """The most that there can be to do.

    Attributes:
        steps: compilers and linkers started.
        seconds: of CPU.
    """

    steps: int
    seconds: float

    @property
    def hours(self) -> float:
        """Of CPU."""
        return self.seconds / 3600


def bound(modules: Sequence[Module], wanted: Sequence[str]) -> Bound:
    """What modules take where nothing of them is there yet; as if each generated unit had code for each target."""
    steps, seconds = 0, 0.0
    for module in modules:
        own = sum(1 for name in wanted if module.supports(name))
        steps += own * len(module.units)
        seconds += own * sum(unit.seconds for unit in module.units)
        if module.kind is not Kind.DEVICE_LIB:
            # Each file is compiled alone before they are linked; those that libraries share count for each.
            steps += 1 + len(module.host)
            seconds += module.seconds
            continue
        count = sum(generator.kept for generator in module.generators) + len(module.compiled)
        steps += count * (1 + own)
        seconds += count * module.seconds * (HOST_SHARE + (1 - HOST_SHARE) * own)
    return Bound(steps=steps, seconds=seconds)


def refuse_unasked(seconds: float, modules: Sequence[Module], named: Sequence[str]) -> None:
    """Long work is for those who name the modules.

    Args:
        seconds: of CPU that are still to do.
        modules: that would be built.
        named: those of the request; none were named where it is empty.

    Raises:
        RequestError: none were, and it would take too long to be started without a word.
    """
    if named or seconds <= HOURS_UNASKED * 3600:
        return
    names = ",".join(module.name for module in modules)
    raise RequestError(
        f"All kernel modules would take {seconds / 3600:.0f} hours of CPU, and nobody named them.",
        hint=f"Name what you want: --modules={names} is all of it, less needs --allow-partial. --shard compiles it in"
        " parts first.",
    )
