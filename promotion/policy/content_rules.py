"""Rules for the names of a set's files, which no policy can relax.

Installers choose a wheel by its name alone. An index therefore has one file for one
project, version, Python, ABI and machine, whatever manylinux tag or build tag other
files have, and never replaces its bytes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from packaging.utils import (
    InvalidWheelFilename,
    canonicalize_name,
    canonicalize_version,
    parse_wheel_filename,
)

from core.model import SHA256SUMS, WHEELS_JSON, Wheel, WheelSet
from promotion.index.ledger_wheel import LedgerWheel
from promotion.index.set_summary import REPORT, REQUIREMENTS, SUMMARY
from promotion.storage.object_keys import (
    EVIDENCE_FOLDER,
    METADATA_SUFFIX,
    PROVENANCE_SUFFIX,
)

_WRITTEN = (SHA256SUMS.lower(), WHEELS_JSON)
_GENERATED = (REPORT, SUMMARY, REQUIREMENTS, f"{EVIDENCE_FOLDER}/", "simple/")
"""Starts of the names of files that staging, gates and promotion write beside a set."""
_RESERVED_ENDS = (".whl", METADATA_SUFFIX, PROVENANCE_SUFFIX, ".html", ".svg")
"""Ends of the names of files of the index, and of files with code that browsers run."""
_MACHINE = re.compile(r"(?:manylinux|musllinux)\d*(?:_\d+_\d+)?_|linux_")


def slots(filename: str) -> frozenset[str]:
    """Return what a wheel serves in an index: project, version, Python, ABI and machine.

    The tags are expanded; the machine has no C library and the version no zeros at its
    end. InvalidWheelFilename if the name is not one of a wheel.
    """
    project, version, _, tags = parse_wheel_filename(filename)
    served = f"{project} {canonicalize_version(version)}"
    found = set()
    for tag in tags:
        machine = _MACHINE.sub("", tag.platform, count=1)
        found.add(f"{served}, {tag.interpreter}-{tag.abi}-{machine}")
    return frozenset(found)


def content_problems(wheel_set: WheelSet) -> Iterator[str]:
    """Yield a sentence for each file of a set whose name an index must not have.

    Some file systems and web servers ignore the case of names.
    """
    for wheel in wheel_set.wheels:
        yield from _name_problems(wheel)
    names = Counter(name.lower() for name in wheel_set.files)
    for name, count in names.items():
        reserved = name.startswith(_GENERATED) or name.endswith(_RESERVED_ENDS)
        if reserved or name in _WRITTEN:
            yield f"The set has a file {name}, a name for files that the index writes."
        if count > 1:
            yield f"The set has {count} files {name}, whose names differ by case only."


def _name_problems(wheel: Wheel) -> Iterator[str]:
    name = wheel.filename
    try:
        project, version, build, _ = parse_wheel_filename(name)
    except InvalidWheelFilename as error:
        yield f"The set has a wheel without a valid name: {error}."
        return
    if build:
        tag = "".join(map(str, build))
        yield f"{name} has the build tag {tag}, for which installers would prefer it."
    start = f"{project.replace('-', '_')}-{version}-"
    if not name.startswith(start) or name != name.lower():
        yield f"{name} is not spelled in its normal form, {start}… in small letters."
    if canonicalize_name(wheel.name) != project or wheel.version != str(version):
        yield f"{name} is recorded as {wheel.name} {wheel.version}."
    platforms = name.removesuffix(".whl").rpartition("-")[2].split(".")
    if len(platforms) > 1:
        yield f"{name} has {len(platforms)} platform tags; one is permitted."


def conflicts(wheel_set: WheelSet, released: Iterable[LedgerWheel]) -> Iterator[str]:
    """Yield a sentence for each wheel whose slot another file of the set or index has.

    Args:
        released: every wheel that the index has or had.
    """
    taken: dict[str, tuple[str, str]] = {}
    for old in released:
        for slot in slots(old.filename):
            taken[slot] = (old.filename, old.sha256)
    for wheel in wheel_set.wheels:
        try:
            own = sorted(slots(wheel.filename))
        except InvalidWheelFilename:
            continue  # `content_problems` names it
        mine = (wheel.filename, wheel.sha256)
        others = {taken.setdefault(slot, mine): slot for slot in own}
        for (name, sha256), slot in others.items():
            if (name, sha256) != mine:
                yield (
                    f"{wheel.filename} is not the file that the index released for"
                    f" {slot}: {name}, sha256 {sha256}"
                )
