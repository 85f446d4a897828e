"""METADATA, WHEEL and entry_points.txt of a repaired wheel.

Changed fields are replaced, all other bytes stay.

The email package of the standard library would fold long lines and rewrite others.
These files are therefore edited by line, and packaging.metadata validates the result.
Sources: the core metadata specification 2.4, PEP 427 (wheel), PEP 639 (licences).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from packaging.metadata import Metadata
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from core.errors import RepairError
from wheelkit.repair.repair_plan import RepairPlan

GENERATOR = "jax-rocm-release (1)"
LICENSE_FILE = "LICENSE.txt"
_METADATA_VERSION = "2.4"
# Order of the specification; a new field is inserted after those that precede it here.
_ORDER = (
    "metadata-version",
    "wheel-version",
    "generator",
    "root-is-purelib",
    "tag",
    "build",
    "name",
    "version",
    "summary",
    "home-page",
    "author",
    "author-email",
    "license",
    "license-expression",
    "license-file",
    "classifier",
    "requires-python",
    "requires-dist",
    "provides-extra",
    "description-content-type",
    "dynamic",
)


class _Field(NamedTuple):
    """One header with its continuation lines, exactly as in the file; its name in lower case."""

    name: str
    raw: bytes

    @property
    def value(self) -> str:
        return self.raw.decode("utf-8").split(":", 1)[1].strip()


class Headers:
    """A file of RFC 822 headers; unchanged lines keep their bytes.

    Raises:
        RepairError: a line is not a header, or the file is not UTF-8.
    """

    def __init__(self, raw: bytes, *, label: str) -> None:
        lines = raw.splitlines(keepends=True)
        self._newline = "\r\n" if lines and lines[0].endswith(b"\r\n") else "\n"
        self._body = b""
        self._fields: list[_Field] = []
        for number, line in enumerate(lines):
            match = re.match(rb"([!-9;-~]+):", line)
            if line in (b"\n", b"\r\n"):
                self._body = b"".join(lines[number:])
                break
            if match:
                self._fields.append(_Field(match[1].decode("ascii").lower(), line))
            elif self._fields and line[:1] in (b" ", b"\t"):
                last = self._fields[-1]
                self._fields[-1] = _Field(last.name, last.raw + line)
            else:
                raise RepairError(
                    f"Line {number + 1} of {label} is not a header.",
                    hint="The wheel is damaged.",
                )
        try:
            raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise RepairError(
                f"{label} is not UTF-8: {error}.", hint="The wheel is damaged."
            ) from error

    def values(self, name: str) -> list[str]:
        """Return every value of a field, in order."""
        return [field.value for field in self._fields if field.name == name.lower()]

    def set(self, name: str, *values: str) -> None:
        """Replace all values of a field, or remove the field if there are no values.

        A field that did not exist is inserted in the order of the specification.

        Raises:
            RepairError: a value has a line break, which would add another field.
        """
        if self.values(name) == list(values):
            return
        for value in values:
            if not value or re.search(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]", value):
                raise RepairError(
                    f"{name} cannot be {value!r}: the value must be one non-empty line"
                    " of text."
                )
        key = name.lower()
        place = self._place(key)
        self._fields = [field for field in self._fields if field.name != key]
        self._fields[place:place] = [
            _Field(key, f"{name}: {value}{self._newline}".encode()) for value in values
        ]

    def drop(self, name: str, values: Collection[str]) -> None:
        """Remove the given values of a field and keep its other values."""
        self._fields = [
            field
            for field in self._fields
            if field.name != name.lower() or field.value not in values
        ]

    def _place(self, key: str) -> int:
        names = [field.name for field in self._fields]
        if key in names:
            return names.index(key)
        earlier = _ORDER[: _ORDER.index(key)]
        numbers = (n for n, name in enumerate(names, start=1) if name in earlier)
        return max(numbers, default=0)

    def __bytes__(self) -> bytes:
        return b"".join(field.raw for field in self._fields) + self._body


def rewrite_metadata(raw: bytes, plan: RepairPlan) -> bytes:
    """Return METADATA with the version, summary, requirements and licence of the plan.

    Raises:
        RepairError: the file belongs to another project, or the result violates the
            core metadata specification; the message lists every problem.
    """
    headers = Headers(raw, label="METADATA")
    names = headers.values("Name")
    if [canonicalize_name(name) for name in names] != [canonicalize_name(plan.project)]:
        raise RepairError(
            f"METADATA has the name of {', '.join(names) or 'no project'} instead of"
            f" {plan.project}."
        )
    if _older(headers.values("Metadata-Version"), _METADATA_VERSION):
        headers.set("Metadata-Version", _METADATA_VERSION)
    headers.set("Version", str(Version(plan.version)))
    headers.set("Summary", plan.summary)
    headers.set("Requires-Python", plan.requires_python)
    requirements = [*plan.requires_dist]
    for extra, needs in plan.extras.items():
        requirements += [f'{need}; extra == "{extra}"' for need in needs]
    headers.set("Requires-Dist", *requirements)
    headers.set("Provides-Extra", *plan.extras)
    headers.set("License")
    headers.set("License-Expression", "Apache-2.0")
    headers.set(
        "License-File", *dict.fromkeys([*headers.values("License-File"), LICENSE_FILE])
    )
    classifiers = headers.values("Classifier")
    headers.drop("Classifier", [c for c in classifiers if c.startswith("License ::")])
    dynamic = headers.values("Dynamic")
    headers.drop("Dynamic", [name for name in dynamic if not headers.values(name)])
    result = bytes(headers)
    try:
        Metadata.from_email(result, validate=True)
    except ExceptionGroup as group:
        problems = "; ".join(str(error) for error in group.exceptions)
        raise RepairError(
            f"METADATA would be invalid: {problems}.",
            hint="Correct the values in the recipe.",
        ) from group
    return result


def rewrite_wheel(raw: bytes, *, tags: Sequence[str], build: str) -> bytes:
    """Return WHEEL with the tags of the file name and this project as generator.

    `Root-Is-Purelib` is false.

    Args:
        tags: expanded tags, such as ("cp312-cp312-manylinux_2_28_x86_64",).
        build: build tag; empty for none.
    """
    headers = Headers(raw, label="WHEEL")
    headers.set("Generator", *dict.fromkeys([*headers.values("Generator"), GENERATOR]))
    headers.set("Root-Is-Purelib", "false")
    headers.set("Tag", *tags)
    headers.set("Build", *([build] if build else []))
    return bytes(headers)


def render_entry_points(groups: Mapping[str, Mapping[str, str]]) -> bytes:
    """Return entry_points.txt with groups and names in the given order."""
    blocks = []
    for group, entries in groups.items():
        lines = [f"{name} = {target}\n" for name, target in entries.items()]
        blocks.append(f"[{group}]\n{''.join(lines)}")
    return "\n".join(blocks).encode()


def _older(values: Sequence[str], minimum: str) -> bool:
    try:
        return len(values) != 1 or Version(values[0]) < Version(minimum)
    except InvalidVersion:
        return True
