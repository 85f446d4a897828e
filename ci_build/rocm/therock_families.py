"""Targets, families and runners of TheRock, read from its sources without running them."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any

from core.errors import InputError
from core.frozen import frozen
from core.targets import TargetTable
from promotion.policy.families import Families, Machines

TARGETS = "cmake/therock_amdgpu_targets.cmake"
RUNNERS = "build_tools/github_actions/amdgpu_family_matrix.py"
_TARGET = re.compile(
    r'^therock_add_amdgpu_target\((\w+) "[^"]*" FAMILY ([^\n)]+)', re.M
)
_FAMILY = re.compile(r'^\[family\."?([\w-]+)"?\]\n(?:(?!\[).*\n)*', re.MULTILINE)
_DEVICES = re.compile(r"(\d+)gpu")


@frozen
class Runners:
    """Machines of a family by label; see `promotion.policy.families.Family`."""

    single: Mapping[str, Machines] = field(default_factory=dict)
    multi: Mapping[str, Machines] = field(default_factory=dict)


@frozen
class TheRock:
    """The part of a commit of TheRock that this project's tables repeat.

    Attributes:
        targets: target -> its families, without the one of its own name.
        runners: family -> its Linux runners.
    """

    commit: str
    targets: Mapping[str, tuple[str, ...]]
    runners: Mapping[str, Runners]


def read_therock(commit: str, show: Callable[[str], str]) -> TheRock:
    """Return the targets and runners of a commit.

    Args:
        show: function that returns the text of a file of the commit.

    Raises:
        InputError: a file is missing or has another form.
    """
    targets = {}
    for name, families in _TARGET.findall(show(TARGETS)):
        targets[name] = tuple(families.split())
    try:
        runners = dict(_runners(show(RUNNERS)))
    except (AttributeError, LookupError, SyntaxError, TypeError, ValueError) as error:
        raise InputError(
            f"{RUNNERS} of TheRock {commit} has another form: {error}.",
            hint="Compare it with ci_build/rocm/therock_families.py.",
        ) from error
    if not targets or not runners:
        raise InputError(
            f"TheRock {commit} has no targets in {TARGETS}, or no families in {RUNNERS}.",
            hint="Give a checkout of ROCm/TheRock.",
        )
    return TheRock(commit=commit, targets=targets, runners=runners)


def _runners(text: str) -> Iterator[tuple[str, Runners]]:
    for node in ast.parse(text).body:
        name = node.targets[0] if isinstance(node, ast.Assign) else None
        if not (
            isinstance(name, ast.Name) and name.id.startswith("amdgpu_family_info")
        ):
            continue
        assert isinstance(node, ast.Assign)
        for platforms in ast.literal_eval(node.value).values():
            if linux := platforms.get("linux"):
                single = _machines(linux, "test-runs-on", 1)
                multi = _machines(linux, "test-runs-on-multi-gpu", None)
                yield linux["family"], Runners(single=single, multi=multi)


def _machines(
    linux: Mapping[str, Any], key: str, devices: int | None
) -> dict[str, Machines]:
    """Return the runners of a key; None reads the number of devices from their labels."""
    alone = [{"label": linux.get(key, "")}]
    found = {}
    for row in linux.get(f"{key}-labels", alone):
        label = row["label"]
        if label:
            number = devices or int(_DEVICES.findall(label)[-1])
            found[label] = Machines(weight=row.get("count", 1), devices=number)
    return found


def differences(therock: TheRock, table: TargetTable) -> tuple[str, ...]:
    """Return a line for each target and family that `core/targets.toml` lacks."""
    lines = []
    for target, families in therock.targets.items():
        known = table.targets.get(target)
        if known is None or set(known.families) != set(families):
            ours = ", ".join(known.families) if known else "missing"
            lines.append(
                f"{target} is {ours} in core/targets.toml, and of {', '.join(families)} in TheRock"
            )
    lines += [
        f"{family} of TheRock is missing in core/targets.toml"
        for family in therock.runners
        if family not in table.families
    ]
    return tuple(lines)


def changed(
    therock: TheRock, families: Families, table: TargetTable
) -> dict[str, Runners]:
    """Return the families of the table whose runners differ from those of `families.toml`."""
    found = {}
    for name, runners in therock.runners.items():
        ours = families.families.get(name)
        same = ours and (ours.single, ours.multi) == (runners.single, runners.multi)
        if name in table.families and not same:
            found[name] = runners
    return found


def with_runners(text: str, new: Mapping[str, Runners], table: TargetTable) -> str:
    """Return the text of `families.toml` with other runners; families are added at its end."""
    rest = dict(new)

    def replaced(match: re.Match[str]) -> str:
        runners = rest.pop(match[1], None)
        if runners is None:
            return match[0]
        kept = [
            line
            for line in match[0].splitlines()
            if not line.startswith(("single = ", "multi = "))
        ]
        # After the name, the targets and the trigger.
        kept[3:3] = _lines(runners)
        return "\n".join(kept) + "\n"

    text = _FAMILY.sub(replaced, text)
    for name, runners in rest.items():
        body = [f"targets = {json.dumps(table.families[name])}", 'when = "nightly"']
        body += [*_lines(runners), "sanity_only = true"]
        text += "\n".join(["", f'[family."{name}"]', *body, ""])
    return text


def _lines(runners: Runners) -> list[str]:
    lines = []
    for key, machines in (("single", runners.single), ("multi", runners.multi)):
        rows = [
            f"{json.dumps(label)} = {{ weight = {row.weight}, devices = {row.devices} }}"
            for label, row in machines.items()
        ]
        if rows:
            lines.append(f"{key} = {{ {', '.join(rows)} }}")
    return lines
