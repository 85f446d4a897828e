"""Wheel sets on disk: reading wheels.json and checking the files beside it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from packaging.utils import parse_wheel_filename

from core.digests import sha256_of
from core.errors import WheelSetError
from core.model import (
    CONSTRAINTS,
    PYLOCK,
    SBOM,
    SHA256SUMS,
    WHEELS_JSON,
    WheelSet,
)
from core.wheels_json import load_wheel_set

SET_FILES = (WHEELS_JSON, SHA256SUMS, CONSTRAINTS, PYLOCK, SBOM)
"""Files beside the wheels of a set."""


def serves(filename: str, python: str) -> bool:
    """Return whether a wheel's tags accept a Python version such as 3.12 (PEP 425).

    Only tags such as py3 and cp312 occur.
    """
    tags = parse_wheel_filename(filename)[3]
    digits = python.replace(".", "")
    known = ("py3", f"py{digits}", f"cp{digits}")
    return any(tag.interpreter in known for tag in tags)


def read_set(folder: Path) -> WheelSet:
    """Read a set from its folder without checking the wheels.

    Raises:
        WheelSetError: wheels.json is missing or invalid.
    """
    path = folder / WHEELS_JSON
    try:
        wheel_set = load_wheel_set(path.read_bytes(), str(path))
    except OSError as error:
        hint = "Build a set with `ci_build dist_wheels`."
        raise WheelSetError(
            f"{path} cannot be read: {error.strerror}.", hint=hint
        ) from error
    return wheel_set


def sha256sums(wheel_set: WheelSet) -> bytes:
    """Return the content of SHA256SUMS.

    The wheels and other files of a set, as `sha256sum --check` reads it.
    """
    rows = sorted(_digests(wheel_set).items())
    return "".join(f"{sha256}  {name}\n" for name, sha256 in rows).encode()


def _digests(wheel_set: WheelSet) -> dict[str, str]:
    digests = {wheel.filename: wheel.sha256 for wheel in wheel_set.wheels}
    return {**digests, **wheel_set.files}


def sizes_of(wheel_set: WheelSet) -> Mapping[str, int]:
    """Return file name -> size in bytes of the wheels and of the other files."""
    sizes = {wheel.filename: wheel.size for wheel in wheel_set.wheels}
    return {**sizes, **wheel_set.file_sizes}


def _listed(folder: Path) -> set[tuple[str, str]]:
    """Return name and sha256 of each file in a folder's SHA256SUMS."""
    rows = set()
    for line in (folder / SHA256SUMS).read_text(encoding="utf-8").splitlines():
        sha256, _, name = line.partition("  ")
        rows.add((name, sha256))
    return rows


def foreign_files(folder: Path) -> tuple[str, ...]:
    """Return the files in a folder that do not belong to its wheel set, sorted.

    All files if wheels.json is missing.
    """
    # Unlike Path.rglob, this tolerates files that are removed meanwhile.
    present: set[str] = set()
    for top, _, names in os.walk(folder):
        present |= {str(Path(top, name).relative_to(folder)) for name in names}
    if WHEELS_JSON not in present:
        return tuple(sorted(present))
    own = {*SET_FILES}
    with suppress(OSError, UnicodeDecodeError):
        own |= {name for name, _ in _listed(folder)}
    return tuple(sorted(present - own))


def file_problems(folder: Path, wheel_set: WheelSet) -> Mapping[str, str]:
    """Return name -> a sentence for each file of a set that is missing or differs.

    The records are those of wheels.json, which SHA256SUMS must repeat. The size of a
    file counts too if the set records it.
    """
    try:
        listed = _listed(folder)
    except (OSError, UnicodeDecodeError) as error:
        return {SHA256SUMS: f"{SHA256SUMS} cannot be read: {error}."}
    expected = _digests(wheel_set)
    problems = {
        name: f"{SHA256SUMS} and {WHEELS_JSON} disagree on {name}."
        for name, _ in listed ^ set(expected.items())
    }
    sizes = sizes_of(wheel_set)
    for name, sha256 in expected.items():
        path = folder / name
        if not path.is_file():
            problems[name] = f"{name} is missing."
        elif (size := path.stat().st_size) != sizes.get(name, size):
            problems[name] = f"{name} has {size} bytes; {sizes[name]} were expected."
        elif (actual := sha256_of(path)) != sha256:
            problems[name] = f"{name} has sha256 {actual}; {sha256} was expected."
    return dict(sorted(problems.items()))


def read_unchanged(folder: Path) -> WheelSet:
    """Read a set whose files agree with its wheels.json.

    Raises:
        WheelSetError: there is no set, or files are missing or changed.
    """
    wheel_set = read_set(folder)
    if wrong := file_problems(folder, wheel_set):
        raise WheelSetError(
            f"Files in {folder} differ from wheels.json: {', '.join(wrong)}.",
            hint="Restore the files, or give an unchanged copy of the set.",
        )
    return wheel_set
