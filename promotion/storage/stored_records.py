"""JSON objects of a bucket as frozen dataclasses."""

from __future__ import annotations

from typing import TypeVar

from core.errors import BucketError, FormatError
from core.records import read_json

RESTORE = "Restore it from a backup. Nothing was changed."
_T = TypeVar("_T")


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
