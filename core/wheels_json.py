"""The text of `wheels.json`: writing and parsing wheel sets."""

from __future__ import annotations

import json
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from core.errors import FormatError, WheelSetError
from core.model import Wheel, WheelSet, to_json
from core.records import convert, read_json

SCHEMA_VERSION = 1
"""Version of the `wheels.json` format."""


def dump_wheel_set(wheel_set: WheelSet) -> str:
    """Return the text of `wheels.json`: the set, its schema and its digest."""
    body = {
        "schema": SCHEMA_VERSION,
        "digest": wheel_set.digest,
        **to_json(wheel_set),
    }
    return json.dumps(body, indent=2, ensure_ascii=False) + "\n"


def load_wheel_set(text: str | bytes, where: str = "wheels.json") -> WheelSet:
    """Parse the text of `wheels.json`.

    Args:
        where: name of the file in messages.

    Raises:
        FormatError: the text is not JSON, the schema or a key is unknown, a key is
            missing, or a value has a wrong type.
        WheelSetError: the digest does not match the content, or the text is not the one
            of `dump_wheel_set`, or a wheel requires what is not a requirement.
    """
    hint = "Give a folder that `ci_build dist_wheels` or `ci_build set adopt` wrote."
    body = read_json(text, dict[str, Any], where, schema=SCHEMA_VERSION, hint=hint)
    digest = body.pop("digest", None)
    wheel_set = convert(body, WheelSet, where, hint="Build the set again.")
    if wheel_set.digest != digest:
        raise WheelSetError(
            f"{where} records digest {digest}, but the digest of its content is"
            f" {wheel_set.digest}.",
            hint="The file was changed after it was written; build the set again.",
        )
    data = text.encode() if isinstance(text, str) else text
    if dump_wheel_set(wheel_set).encode() != data:
        # Such as a key that occurs twice: other programs may read the first value.
        raise WheelSetError(
            f"{where} is not written as `ci_build` writes it.", hint=hint
        )
    for wheel in wheel_set.wheels:
        _check_requirements(wheel, where)
    if wheel_set.file_sizes.keys() != wheel_set.files.keys():
        raise FormatError(
            f"{where}: file_sizes: expected one size for each of the files.",
            hint="Build the set again.",
        )
    return wheel_set


def _check_requirements(wheel: Wheel, where: str) -> None:
    """Raise WheelSetError if a wheel has an invalid requirement (PEP 508)."""
    for text in wheel.requires_dist:
        try:
            Requirement(text)
        except InvalidRequirement as error:
            raise WheelSetError(
                f"{where} is not a valid wheels.json: {wheel.filename} requires"
                f" {text!r}, which is not a requirement.",
                hint="Correct Requires-Dist in its METADATA and build the set again.",
            ) from error
