"""A set of numbers as ranges.

Its size depends on the gaps between the numbers, not on their count.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

PATTERN = r"^(?:\d{1,8}(?:-\d{1,8})?(?:,\d{1,8}(?:-\d{1,8})?)*)?$"
"""Regular expression of the text of a set."""


@dataclass(frozen=True, slots=True)
class NumberRanges(Collection[int]):
    """An ascending set of numbers; its text is like `1-5,7`.

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

    @classmethod
    def parse(cls, text: str) -> NumberRanges:
        """Parse the text of a set; ValueError if it is not exactly what `str` returns for a set."""
        if re.fullmatch(PATTERN, text) is None:
            raise ValueError(f"{text!r:.80} is not a list of ranges")
        bounds: list[int] = []
        for part in filter(None, text.split(",")):
            first, _, last = part.partition("-")
            bounds += (int(first), int(last or first) + 1)
        found = cls(tuple(bounds))
        if str(found) != text or sorted({*bounds}) != bounds:
            raise ValueError(f"{text!r:.80} is not a list of ascending ranges")
        return found

    def __str__(self) -> str:
        parts = []
        for first, end in self._ranges():
            parts.append(str(first) if end == first + 1 else f"{first}-{end - 1}")
        return ",".join(parts)

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
