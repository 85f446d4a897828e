"""Plots over sets as the numbers of an SVG: bars and grids, with their values as a table for screen readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

_COLUMN, _BAR, _HEIGHT, _LEFT, _TOP = 28, 20, 160, 72, 8
_CELL = 16
COLORS = 8
"""Number of colours `f0` to `f7` in style.css; of more series, the smallest ones are drawn as one."""
_OWN_COLORS = ("passed", "failed", "flaky")
"""Series with the colours of success, failure and warning."""
MAX_COLUMNS = 30
"""Number of sets in a plot, the newest ones."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """A rectangle with its tooltip; all lengths are in pixels."""

    x: int
    y: float
    width: int
    height: float
    style: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Label:
    """A text beside an axis."""

    x: int
    y: float
    text: str
    anchor: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PlotLine:
    """A horizontal line."""

    x1: int
    x2: int
    y1: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """A plot and its values.

    Attributes:
        key: name and CSS class of each colour.
        columns, table: header and rows of the table with the values.
    """

    title: str
    note: str
    width: int
    height: int
    key: tuple[tuple[str, str], ...]
    marks: tuple[Mark, ...]
    lines: tuple[PlotLine, ...]
    labels: tuple[Label, ...]
    columns: tuple[str, ...]
    table: tuple[tuple[str, ...], ...]


def stacked_bars(
    title: str,
    note: str,
    sets: Sequence[tuple[str, Mapping[str, float]]],
    series: Sequence[str],
    text: Callable[[float], str],
) -> Chart:
    """Return a bar for each set, oldest first, stacked from its values; absent values take no space.

    Args:
        sets: label and values (by series) of each set.
        series: names of the series, the lowest one first; the table of the values has all of them.
        text: format of a value.
    """
    sets = sets[-MAX_COLUMNS:]
    columns = "Set", *series
    table = [(label, *(text(values[n]) if n in values else "–" for n in series)) for label, values in sets]
    sets, series = _with_rest(sets, series)
    highest = max((sum(values.get(name, 0) for name in series) for _, values in sets), default=0) or 1
    styles = {name: f"s-{name}" if name in _OWN_COLORS else f"f{number}" for number, name in enumerate(series)}
    marks = []
    for column, (label, values) in enumerate(sets):
        top = float(_TOP + _HEIGHT)
        for name in (name for name in series if values.get(name, 0) > 0):
            height = _HEIGHT * values[name] / highest
            top -= height
            tip = f"set {label}, {name}: {text(values[name])}"
            x = _LEFT + column * _COLUMN + (_COLUMN - _BAR) // 2
            marks.append(Mark(x=x, y=_round(top), width=_BAR, height=_round(height), style=styles[name], text=tip))
    right = _LEFT + max(len(sets), 4) * _COLUMN
    levels = {text(highest * part): _round(_TOP + _HEIGHT * (1 - part)) for part in (1.0, 0.5, 0.0)}
    return Chart(
        title=title,
        note=note,
        width=right + 8,
        height=_TOP + _HEIGHT + 24,
        key=tuple(styles.items()),
        marks=tuple(marks),
        lines=tuple(PlotLine(x1=_LEFT, x2=right, y1=y) for y in levels.values()),
        labels=(
            *(Label(x=_LEFT - 6, y=y + 4, text=level, anchor="end") for level, y in levels.items()),
            *_below(sets, _TOP + _HEIGHT),
        ),
        columns=columns,
        table=tuple(table),
    )


def _with_rest(
    sets: Sequence[tuple[str, Mapping[str, float]]], series: Sequence[str]
) -> tuple[Sequence[tuple[str, Mapping[str, float]]], Sequence[str]]:
    """Return sets and series with the sum of the smallest series instead of those that have no colour."""
    if len(series) <= COLORS:
        return sets, series
    total = {name: sum(values.get(name, 0) for _, values in sets) for name in series}
    largest = sorted(series, key=lambda name: total[name], reverse=True)[: COLORS - 1]
    rest = f"{len(series) - len(largest)} others"
    return [
        (label, {**values, rest: sum(value for name, value in values.items() if name not in largest)})
        for label, values in sets
    ], (*(name for name in series if name in largest), rest)


def tier_grid(title: str, note: str, sets: Sequence[tuple[str, Mapping[str, str]]], targets: Sequence[str]) -> Chart:
    """Return a cell for each target (row) and set (column, oldest first), coloured by tier; others are empty."""
    sets = sets[-MAX_COLUMNS:]
    tiers = ("device", "compiled", "structure", "none")
    marks = [
        Mark(
            x=_LEFT + column * _COLUMN + 2,
            y=float(_TOP + row * _CELL),
            width=_COLUMN - 4,
            height=float(_CELL - 3),
            style=f"tier-{tier if tier in tiers else 'none'}",
            text=f"set {label}, {target}: {tier}",
        )
        for column, (label, found) in enumerate(sets)
        for row, target in enumerate(targets)
        for tier in (found.get(target, ""),)
        if tier
    ]
    bottom = _TOP + len(targets) * _CELL
    return Chart(
        title=title,
        note=note,
        width=_LEFT + max(len(sets), 4) * _COLUMN + 8,
        height=bottom + 24,
        key=tuple((tier, f"tier-{tier}") for tier in tiers),
        marks=tuple(marks),
        lines=(),
        labels=(
            *(
                Label(x=_LEFT - 6, y=float(_TOP + row * _CELL + 11), text=_short(target), anchor="end")
                for row, target in enumerate(targets)
            ),
            *_below(sets, bottom),
        ),
        columns=("Set", *targets),
        table=tuple((label, *(found.get(target, "–") for target in targets)) for label, found in sets),
    )


def _below(sets: Sequence[tuple[str, object]], bottom: int) -> tuple[Label, ...]:
    """Return the labels of the sets below a plot."""
    middle = _LEFT + _COLUMN // 2
    return Label(x=_LEFT - 6, y=bottom + 16.0, text="set", anchor="end"), *(
        Label(x=middle + column * _COLUMN, y=bottom + 16.0, text=_short(label), anchor="middle")
        for column, (label, _) in enumerate(sets)
    )


def _short(text: str) -> str:
    return text if len(text) <= 10 else f"{text[:9]}…"


def _round(value: float) -> float:
    return round(value, 1)
