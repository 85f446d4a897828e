"""JSON objects of a bucket as frozen dataclasses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from core.errors import BucketError, FormatError
from core.records import read_json

RESTORE = "Restore it from a backup. Nothing was changed."
_T = TypeVar("_T")


def dump_record(body: Mapping[str, Any], *, schema: int) -> bytes:
    """Return the text of an object to store, from JSON values."""
    body = {"schema": schema, **body}
    return (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode()


def stored_record(
    data: bytes, kind: type[_T], key: str, *, schema: int, hint: str = RESTORE
) -> _T:
    """Return the value in a stored object.

    Raises:
        BucketError: the object has another format, so its bytes were damaged.
    """
    try:
        return read_json(data, kind, key, schema=schema)
    except FormatError as error:
        raise BucketError(error.message, hint=hint) from error
