"""JSON Schemas (draft 2020-12) of a bucket's files, from the types of their readers.

Each schema describes the current version of a file: all fields are written, and unknown
fields are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from core import wheels_json
from core.model import Evidence, WheelSet
from promotion.evidence import evidence
from promotion.evidence.signing import SCHEMA_VERSION as SIGNATURE_VERSION
from promotion.evidence.signing import Signature
from promotion.index import ledger
from promotion.index import set_summary as summary
from promotion.index.json_types import STATUS_SCHEMA, PolicyRecord, StatusFile

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_ATTRIBUTE = re.compile(r"^ {4}([\w, ]+): (.*(?:\n {8}.*)*)", re.MULTILINE)
_TIME = {"pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"}
_SHA256 = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_BASE64 = {"type": "string", "contentEncoding": "base64"}


def ledger_schema() -> Mapping[str, Any]:
    """Return the schema of an entry of a ledger.

    Its signature is the only field that may be absent.
    """
    # `PromotedSet.policy` is untyped because it is stored as read; the reader checks it
    # against PolicyRecord.
    title = "An entry of the ledger of an index"
    schema = _file(
        title,
        ledger.LedgerEntry,
        ledger.SCHEMA_VERSION,
        PolicyRecord,
        number={"minimum": 1},
    )
    text = "signature of all other fields with `key`; absent in unsigned entries."
    schema["properties"]["signature"] = {**_BASE64, "description": text}
    promoted = schema["$defs"]["PromotedSet"]
    promoted["properties"]["policy"] = {"$ref": "#/$defs/PolicyRecord"}
    return schema


def wheels_schema() -> Mapping[str, Any]:
    """Return the schema of `wheels.json`."""
    schema = _file("A wheel set", WheelSet, wheels_json.SCHEMA_VERSION)
    schema["properties"]["digest"] = {**_SHA256, "description": "digest of the set."}
    schema["required"].append("digest")
    return schema


def _file(
    title: str, kind: type, version: int, *others: type, **refined: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the schema of a class; nested classes and `others` become definitions.

    Args:
        refined: name of a field -> further keys of its schema.
    """
    kinds = [kind, *others]
    _, parts = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    parts = {name: _strict(part) for name, part in parts.items()}
    body = parts.pop(kind.__name__)
    properties = {"schema": {"const": version}, **body["properties"]}
    for name, keys in refined.items():
        properties[name] |= keys
    return {
        **body,
        "$schema": _DIALECT,
        "title": title,
        "properties": properties,
        "required": ["schema", *body["required"]],
        "$defs": parts,
    }


def _strict(part: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a class that requires all fields and describes each."""
    text, _, section = part.pop("description", "").partition("\n\nAttributes:\n")
    if "properties" not in part:
        return part
    for names, meaning in _ATTRIBUTE.findall(section):
        for name in names.split(","):
            field = part["properties"].get(name.strip(), {})
            field["description"] = " ".join(meaning.split())
    # The writers omit no field that has a default.
    for name, field in part["properties"].items():
        if "default" in field:
            del field["default"]
            part["required"].append(name)
    return {**part, "description": text, "additionalProperties": False}


SCHEMAS: Mapping[str, Callable[[], Mapping[str, Any]]] = {
    "evidence.schema.json": partial(
        _file,
        "Evidence of one gate for one set",
        Evidence,
        evidence.SCHEMA_VERSION,
        set_digest=_SHA256,
        started=_TIME,
        ended=_TIME,
    ),
    "ledger-entry.schema.json": ledger_schema,
    "signature.schema.json": partial(
        _file,
        "Signature of evidence",
        Signature,
        SIGNATURE_VERSION,
        key={"pattern": "^ssh-ed25519 [A-Za-z0-9+/=]+$"},
        signature=_BASE64,
    ),
    "status.schema.json": partial(
        _file, "The state of an index, for monitors", StatusFile, STATUS_SCHEMA
    ),
    "summary.schema.json": partial(
        _file, "Content of a promoted set", summary.SetContent, summary.SCHEMA_VERSION
    ),
    "wheels.schema.json": wheels_schema,
}
"""File name of each schema -> function that returns it."""
