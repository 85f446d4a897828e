"""A set of numbers as ranges.

Its size depends on the gaps between the numbers, not on their count.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NumberRanges(Collection[int]):
    """An ascending set of numbers.

    Attributes:
        bounds: first number of each range, and the number after its last one,
            ascending.
    """

    bounds: tuple[int, ...] = ()

    @classmethod
    def of(cls, numbers: Iterable[int]) -> NumberRanges:
        """Return the set of some numbers."""
        members = {*numbers}
        return cls(tuple(sorted(members ^ {number + 1 for number in members})))

    def __post_init__(self) -> None:
        if sorted({*self.bounds}) != [*self.bounds] or len(self.bounds) % 2:
            raise ValueError(f"not the bounds of ranges: {self.bounds}")

    def __len__(self) -> int:
        return sum(last - first for first, last in self._ranges())

    def __iter__(self) -> Iterator[int]:
        for first, last in self._ranges():
            yield from range(first, last)

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and bisect_right(self.bounds, number) % 2 == 1

    def __xor__(self, other: NumberRanges) -> NumberRanges:
        """Return the numbers that are in exactly one of two sets."""
        return NumberRanges(tuple(sorted({*self.bounds} ^ {*other.bounds})))

    def plus(self, numbers: Iterable[int]) -> NumberRanges:
        """Return the set with further numbers."""
        return self ^ NumberRanges.of(
            number for number in numbers if number not in self
        )

    def without(self, numbers: Iterable[int]) -> NumberRanges:
        """Return the set without some numbers."""
        return self ^ NumberRanges.of(number for number in numbers if number in self)

    def _ranges(self) -> Iterator[tuple[int, int]]:
        return zip(self.bounds[::2], self.bounds[1::2], strict=True)


NO_NUMBERS = NumberRanges()
