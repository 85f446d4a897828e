"""Comparison of wheels and sets with the files that this program writes for their recorded recipes.

It proves that a wheel has the reviewed loader and metadata, not that these are right.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from fnmatch import fnmatchcase
from itertools import zip_longest
from typing import Any

from core.errors import ArchiveError, CiBuildError
from core.frozen import frozen
from core.model import SBOM, Finding, Payload, Severity, Wheel, WheelSet, to_json
from promotion.gates.common.gate_context import error
from promotion.storage.bucket import AbsentError
from wheelkit.archive.canonical import check_canonical
from wheelkit.archive.wheel_archive import WheelArchive
from wheelkit.findings import some
from wheelkit.inspect.inspection_model import ElfFacts
from wheelkit.recipe_base import RECIPE
from wheelkit.repair.metadata import (
    GENERATOR,
    LICENSE_FILE,
    render_entry_points,
    rewrite_metadata,
    rewrite_wheel,
)
from wheelkit.repair.repair_plan import RepairPlan

_REBUILD = (
    "Build the wheel again; if the change is intended, change the payload or recipe and"
    " have it reviewed."
)
_REBUILD_SET = "Build and stage the set again."
_REWRITTEN = (
    "Build the wheel again, and leave its archive as it is written; other programs must"
    " not pack it again."
)
_OTHER = (
    "Build the set with this version of the program to compare its Python files and"
    " metadata with their sources."
)
_KEPT = frozenset(("commit_info.py",))
"""Python files of JAX's build that the repair keeps."""
_DIST_INFO = frozenset(
    (
        "METADATA",
        "WHEEL",
        "RECORD",
        "entry_points.txt",
        "top_level.txt",
        "LICENSE",
        f"licenses/{LICENSE_FILE}",
    )
)
_MEASURED = frozenset(("compression", "members", "inputs", "tools"))
"""Fields of build_info.json that no recipe knows."""
_MOST_BYTES = 4 << 20
_MOST_TEXT = 120
_MOST_NAMED = 3


SET = ""
"""Key of the set's own files among the problems of an ExpectedSet."""


@frozen
class ExpectedSet:
    """Content that this program writes for the recipes that a set records.

    Attributes:
        program: digest of this program, which wheels.json has in the tools of sets that
            it made.
        plans: file name -> repair plan of a wheel that has a recipe.
        files: name -> text of the set's derived files; empty for sets of another
            version, which may have written other fields.
        problems: file name of a wheel, or SET -> why this program writes no such
            content.
    """

    program: str
    plans: Mapping[str, RepairPlan] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)


def check_wheel(
    archive: WheelArchive,
    elfs: Sequence[ElfFacts],
    wheel: Wheel,
    wheel_set: WheelSet,
    info: Mapping[str, Any],
    expected: ExpectedSet,
) -> Iterator[Finding]:
    """Compare a wheel with what its recipe writes.

    Wheels that this program did not make yield nothing.

    Args:
        elfs: facts about the libraries of the wheel.
        info: the wheel's build information; empty if it has none.
    """
    generators = archive.headers("WHEEL").get_all("Generator", [])
    if not info and GENERATOR not in generators:
        return
    for clause, names in check_canonical(archive).items():
        text = (
            f"{wheel.filename}: {clause}{f' ({some(names)})' if names else ''}; this"
            " program writes no such archive."
        )
        yield error(
            "archive-not-canonical", text, _REWRITTEN, member=names[0] if names else ""
        )
    if wheel.filename in expected.problems:
        text = (
            f"{wheel.filename}: no recipe writes its build_info.json:"
            f" {expected.problems[wheel.filename]}."
        )
        yield error("build-info-differs", text, _REBUILD)
        return
    plan = expected.plans.get(wheel.filename)
    if plan is None:
        return
    if (
        plan.build_info[RECIPE] != info.get(RECIPE)
        and wheel_set.tools.get("ci_build") != expected.program
    ):
        text = (
            f"{wheel.filename}: its Python files and metadata were not compared:"
            " another version wrote them."
        )
        yield Finding(
            code="recipe-other", severity=Severity.NOTE, message=text, remedy=_OTHER
        )
        return
    yield from _file_differences(archive, wheel, plan)
    yield from _metadata_differences(archive, wheel, plan)
    yield from _info_differences(wheel, wheel_set, info, plan)
    for elf in elfs:
        runpath = next(
            (
                path
                for glob, path in plan.runpath.items()
                if fnmatchcase(elf.path, glob)
            ),
            "",
        )
        if elf.runpath and runpath and ":".join(elf.runpath) != runpath:
            text = (
                f"{wheel.filename}: RUNPATH of {elf.path} is {':'.join(elf.runpath)},"
                f" not {runpath}."
            )
            yield error("runpath-differs", text, _REBUILD, member=elf.path)


def _file_differences(
    archive: WheelArchive, wheel: Wheel, plan: RepairPlan
) -> Iterator[Finding]:
    """Compare the names of all files, and the content of those that the recipe writes."""
    folder = f"{archive.dist_info}/"
    own = plan.build_info_path.rpartition("/")[0]
    files = {**plan.files, f"{folder}licenses/{LICENSE_FILE}": plan.license_text}
    if plan.entry_points is not None:
        files[f"{folder}entry_points.txt"] = render_entry_points(plan.entry_points)
    allowed = {*files, *plan.members, plan.build_info_path}
    allowed |= {f"{own}/{name}" for name in _KEPT} | {
        folder + name for name in _DIST_INFO
    }
    for member in archive.members:
        if member.name not in allowed:
            text = (
                f"{wheel.filename}: {member.name} is additional: the recipe of the"
                " wheel writes no such file."
            )
            yield error("payload-differs", text, _REBUILD, member=member.name)
    if (listed := f"{folder}top_level.txt") in archive:
        files[listed] = f"{own.partition('/')[0]}\n".encode()
    for name, expected in files.items():
        difference = (
            "it is missing"
            if name not in archive
            else _changed(_read(archive, name), expected)
        )
        if difference:
            text = (
                f"{wheel.filename}: {name} is not what this program writes:"
                f" {difference}."
            )
            yield error("payload-differs", text, _REBUILD, member=name)


def _read(archive: WheelArchive, name: str) -> bytes | None:
    """Return the content of a member; None if it is damaged, which inspection reports."""
    try:
        return archive.read(name, _MOST_BYTES)
    except ArchiveError:
        return None


def _changed(actual: bytes | None, expected: bytes) -> str:
    """Return a clause about the first line that differs; empty if none does."""
    if actual is None or actual == expected:
        return ""
    rows = zip_longest(actual.split(b"\n"), expected.split(b"\n"))
    number, has, wanted = next(
        (n, *row) for n, row in enumerate(rows, 1) if row[0] != row[1]
    )
    if wanted is None:
        return f"line {number} is additional: {_short(has)}"
    if has is None:
        return f"line {number} is missing: {_short(wanted)}"
    return f"line {number} is {_short(has)}, not {_short(wanted)}"


def _short(value: object) -> str:
    text = repr(value.decode(errors="replace") if isinstance(value, bytes) else value)
    return text if len(text) <= _MOST_TEXT else text[:_MOST_TEXT] + "…"


def _metadata_differences(
    archive: WheelArchive, wheel: Wheel, plan: RepairPlan
) -> Iterator[Finding]:
    """Compare METADATA and WHEEL with their rewriting, which should change nothing."""
    writers: dict[str, Callable[[bytes], bytes]] = {
        "METADATA": lambda raw: rewrite_metadata(raw, plan),
        "WHEEL": lambda raw: rewrite_wheel(
            raw, tags=archive.name.tags, build=archive.name.build
        ),
    }
    for file, write in writers.items():
        name = f"{archive.dist_info}/{file}"
        raw = _read(archive, name) if name in archive else None
        if raw is None:
            continue  # inspection reports it
        try:
            difference = _changed(raw, write(raw))
        except CiBuildError as problem:
            difference = problem.message
        if difference:
            text = (
                f"{wheel.filename}: {name} is not what this program writes:"
                f" {difference}."
            )
            yield error("metadata-differs", text, _REBUILD, member=name)


def _info_differences(
    wheel: Wheel, wheel_set: WheelSet, info: Mapping[str, Any], plan: RepairPlan
) -> Iterator[Finding]:
    """Compare each field of build_info.json with the recipe, the libraries and wheels.json."""
    expected = {
        **to_json(plan.build_info),
        "members": sorted(to_json(wheel.members), key=_path),
    }
    actual = {
        name: value
        for name, value in info.items()
        if name not in _MEASURED - {"members"}
    }
    if isinstance(members := info.get("members"), list):
        actual["members"] = sorted(members, key=_path)
    if wheel_set.request.get("payload") in [*Payload]:
        options = {"stripped": "strip", "requested_targets": "targets"}
        expected |= {
            name: wheel_set.request[key]
            for name, key in options.items()
            if key in wheel_set.request
        }
    if tools := {
        name: version for name, version in wheel_set.tools.items() if name != "ci_build"
    }:
        expected["tools"], actual["tools"] = tools, info.get("tools")
    if differences := list(differences_of(actual, expected)):
        text = (
            f"{wheel.filename}: {plan.build_info_path} is wrong:"
            f" {_listed(differences)}."
        )
        yield error("build-info-differs", text, _REBUILD, member=plan.build_info_path)


def _path(member: object) -> str:
    return str(member.get("path")) if isinstance(member, Mapping) else ""


def differences_of(actual: object, expected: object, path: str = "") -> Iterator[str]:
    """Yield a clause with the path of each JSON value that differs."""
    if isinstance(actual, Mapping) and isinstance(expected, Mapping):
        for key in sorted({*actual, *expected}):
            inner = f"{path}.{key}" if path else str(key)
            if key not in actual:
                yield f"{inner} is missing"
            elif key not in expected:
                yield f"{inner} is additional"
            else:
                yield from differences_of(actual[key], expected[key], inner)
    elif (
        isinstance(actual, list)
        and isinstance(expected, list)
        and len(actual) == len(expected)
    ):
        for number, (one, other) in enumerate(zip(actual, expected, strict=True)):
            yield from differences_of(one, other, f"{path}[{number}]")
    elif type(actual) is not type(expected) or actual != expected:
        yield f"{path or 'the value'} is {_short(actual)}, not {_short(expected)}"


def check_files(
    read: Callable[[str], bytes], expected: ExpectedSet
) -> Iterator[Finding]:
    """Compare the files beside a set's wheels with those derived from its inputs.

    Args:
        read: returns the content of a file of the set.
    """
    if SET in expected.problems:
        text = (
            f"The files of the set cannot be written again: {expected.problems[SET]}."
        )
        yield error("set-file-untrue", text, _REBUILD_SET)
    for name, text in expected.files.items():
        try:
            actual = read(name)
            differences = list(_content_differences(name, actual, text))
        except (AbsentError, ValueError, RecursionError) as problem:
            differences = [str(problem)]
        if differences:
            text = (
                f"{name} of the set is not what its wheels and wheels.json give:"
                f" {_listed(differences)}."
            )
            yield error("set-file-untrue", text, _REBUILD_SET)


def _content_differences(name: str, actual: bytes, expected: str) -> Iterator[str]:
    if name.endswith(".json"):
        values = json.loads(actual), json.loads(expected)
        for value in values if name == SBOM else ():
            value.pop("serialNumber", None)  # a digest of the other values
        yield from differences_of(*values)
    elif name.endswith(".toml"):
        yield from differences_of(
            tomllib.loads(actual.decode()), tomllib.loads(expected)
        )
    elif changed := _changed(actual, expected.encode()):
        yield changed


def _listed(differences: Sequence[str]) -> str:
    more = len(differences) - _MOST_NAMED
    return "; ".join(differences[:_MOST_NAMED]) + (
        f"; and {more} more" if more > 0 else ""
    )
