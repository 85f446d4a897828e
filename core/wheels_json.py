"""The text of `wheels.json`: writing and parsing wheel sets.

The doctor reads indexes on a bare Python, so this module uses the standard library
alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from core.errors import WheelSetError
from core.model import InputFile, MemberInfo, Wheel, WheelSet, wheel_set_body

SCHEMA_VERSION = 1
"""Version of the `wheels.json` format."""

_JSON_NAMES = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
}
"""Names of JSON values that are not objects, by their Python type."""


def dump_wheel_set(wheel_set: WheelSet) -> str:
    """Return the text of `wheels.json`: the set, its schema and its digest."""
    body = {
        "schema": SCHEMA_VERSION,
        "digest": wheel_set.digest,
        **wheel_set_body(wheel_set),
    }
    return json.dumps(body, indent=2, ensure_ascii=False) + "\n"


def load_wheel(body: Mapping[str, Any]) -> Wheel:
    """Return a wheel from its JSON values.

    Raises:
        KeyError: a field is missing.
        TypeError: a field is unknown or has a wrong type.
    """
    members = tuple(
        MemberInfo(
            **{
                **member,
                "targets": tuple(member["targets"]),
                "needed": tuple(member["needed"]),
            }
        )
        for member in body["members"]
    )
    lists = {
        "tags": tuple(body["tags"]),
        "requires_dist": tuple(body["requires_dist"]),
        "members": members,
    }
    return Wheel(**{**body, **lists})


def _read_body(text: str | bytes, where: str) -> dict[str, Any]:
    """Return the JSON object of a `wheels.json` of this schema, without its schema.

    Raises:
        WheelSetError: the text is not a JSON object, or has another schema.
    """
    hint = "Give a folder that `ci_build dist_wheels` or `ci_build adopt` wrote."
    try:
        body = json.loads(text if isinstance(text, str) else text.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise WheelSetError(
            f"{where} is not text in UTF-8: byte {error.start} is invalid.", hint=hint
        ) from error
    except (ValueError, RecursionError) as error:
        why = (
            str(error)
            if isinstance(error, json.JSONDecodeError)
            else "a value is too large"
        )
        raise WheelSetError(f"{where} is not JSON: {why}.", hint=hint) from error
    if not isinstance(body, dict) or "schema" not in body:
        what = (
            "has no schema"
            if isinstance(body, dict)
            else f"contains {_JSON_NAMES[type(body)]} instead of an object"
        )
        raise WheelSetError(
            f"{where} is not the wheels.json of a wheel set: it {what}.", hint=hint
        )
    schema = body.pop("schema")
    if isinstance(schema, int) and schema > SCHEMA_VERSION:
        raise WheelSetError(
            f"{where} has schema {schema}, which is newer than schema {SCHEMA_VERSION}"
            " of this program.",
            hint="Use the version of ci_build that wrote the set, or a newer one.",
        )
    if schema != SCHEMA_VERSION:
        raise WheelSetError(
            f"{where} has schema {schema!r}, but this program supports only schema"
            f" {SCHEMA_VERSION}.",
            hint="Build the set again.",
        )
    return body


def load_wheel_set(text: str | bytes, where: str = "wheels.json") -> WheelSet:
    """Parse the text of `wheels.json`.

    Args:
        where: name of the file in messages.

    Raises:
        WheelSetError: the text is not JSON, the schema or a field is unknown, a field
            is missing, or the digest does not match the content.
    """
    body = _read_body(text, where)
    try:
        digest = body.pop("digest")
        wheels = tuple(load_wheel(wheel) for wheel in body.pop("wheels"))
        inputs = tuple(InputFile(**item) for item in body.pop("inputs"))
        for key in ("targets", "python_versions"):
            body[key] = tuple(body[key])
        wheel_set = WheelSet(wheels=wheels, inputs=inputs, **body)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = (
            f"field {error} is missing"
            if isinstance(error, KeyError)
            else "a field is unknown or has a wrong type"
        )
        raise WheelSetError(
            f"{where} is not a valid wheels.json: {why}.", hint="Build the set again."
        ) from error
    if wheel_set.digest != digest:
        raise WheelSetError(
            f"{where} records digest {digest}, but the digest of its content is"
            f" {wheel_set.digest}.",
            hint="The file was changed after it was written; build the set again.",
        )
    sizes = wheel_set.file_sizes
    if sizes and (
        sizes.keys() != wheel_set.files.keys()
        or {type(size) for size in sizes.values()} != {int}
    ):
        raise WheelSetError(
            f"{where} is not a valid wheels.json: file_sizes does not have one size for"
            " each of its files.",
            hint="Build the set again.",
        )
    return wheel_set
