"""JSON Schemas (draft 2020-12) of a bucket's files, from the types of their readers.

Each schema describes the current version of a file: all fields are written, and unknown
fields are refused.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict

from core import wheels_json
from core.model import Evidence, WheelSet
from core.number_ranges import PATTERN, NumberRanges
from promotion.evidence import evidence
from promotion.evidence.signing import SCHEMA_VERSION as SIGNATURE_VERSION
from promotion.index import ledger
from promotion.index import set_summary as summary
from promotion.index.index_reader import STATUS_SCHEMA
from promotion.index.json_types import PolicyRecord, StatusFile

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SIMPLE: Mapping[object, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    NoneType: "null",
}
_ATTRIBUTE = re.compile(r"^ {4}([\w, ]+): (.*(?:\n {8}.*)*)", re.MULTILINE)
_TIME = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"
_SHA256 = "^[0-9a-f]{64}$"
_BASE64 = {"type": "string", "contentEncoding": "base64"}


def evidence_schema() -> Mapping[str, Any]:
    """Return the schema of an evidence file."""
    schema = _file(
        "Evidence of one gate for one set", Evidence, evidence.SCHEMA_VERSION
    )
    properties = schema["properties"]
    properties["set_digest"] |= {"pattern": _SHA256}
    properties["started"] |= {"pattern": _TIME}
    properties["ended"] |= {"pattern": _TIME}
    return schema


def ledger_schema() -> Mapping[str, Any]:
    """Return the schema of an entry of a ledger.

    Its signature is the only field that may be absent.
    """
    schema = _file(
        "An entry of the ledger of an index", ledger.LedgerEntry, ledger.SCHEMA_VERSION
    )
    schema["properties"]["number"] |= {"minimum": 1}
    schema["properties"]["signature"] = {
        **_BASE64,
        "description": (
            "signature of all other fields with `key`; absent in unsigned entries."
        ),
    }
    # `PromotedSet.policy` is untyped because it is stored as read; the reader checks it
    # against this type.
    schema["$defs"]["PromotedSet"]["properties"]["policy"] |= _schema_of(
        PolicyRecord, schema["$defs"]
    )
    return schema


def wheels_schema() -> Mapping[str, Any]:
    """Return the schema of `wheels.json`."""
    schema = _file("A wheel set", WheelSet, wheels_json.SCHEMA_VERSION)
    schema["properties"]["digest"] = {
        "type": "string",
        "pattern": _SHA256,
        "description": "digest of the set.",
    }
    schema["required"].append("digest")
    return schema


def status_schema() -> Mapping[str, Any]:
    """Return the schema of `status.json` of an index, for monitors."""
    schema = _file("The state of an index, for monitors", StatusFile, STATUS_SCHEMA)
    # The writer adds no other fields; readers accept those of later versions.
    for part in (schema, *schema["$defs"].values()):
        part["additionalProperties"] = False
    return schema


def signature_schema() -> Mapping[str, Any]:
    """Return the schema of the signature beside a file of evidence."""
    fields = {
        "schema": {"const": SIGNATURE_VERSION},
        "key": {
            "type": "string",
            "pattern": "^ssh-ed25519 [A-Za-z0-9+/=]+$",
            "description": "public key.",
        },
        "signature": {
            **_BASE64,
            "description": "signature of the file and its media type (DSSE).",
        },
    }
    return {
        "$schema": _DIALECT,
        "title": "Signature of evidence",
        "type": "object",
        "properties": fields,
        "required": [*fields],
        "additionalProperties": False,
    }


def summary_schema() -> Mapping[str, Any]:
    """Return the schema of the content that a promotion writes beside a set."""
    return _file(
        "Content of a promoted set", summary.SetContent, summary.SCHEMA_VERSION
    )


SCHEMAS: Mapping[str, Callable[[], Mapping[str, Any]]] = {
    "evidence.schema.json": evidence_schema,
    "ledger-entry.schema.json": ledger_schema,
    "signature.schema.json": signature_schema,
    "status.schema.json": status_schema,
    "summary.schema.json": summary_schema,
    "wheels.schema.json": wheels_schema,
}
"""File name of each schema -> function that returns it."""


def descriptions(kind: type) -> Mapping[str, str]:
    """Return field -> description from the section `Attributes` of a class's docstring."""
    section = (inspect.getdoc(kind) or "").partition("Attributes:\n")[2]
    descriptions = {}
    for names, text in _ATTRIBUTE.findall(section):
        for name in names.split(","):
            descriptions[name.strip()] = " ".join(text.split())
    return descriptions


def _file(title: str, kind: type, version: int) -> dict[str, Any]:
    definitions: dict[str, Any] = {}
    body = _object(kind, definitions)
    properties = {"schema": {"const": version}, **body["properties"]}
    return {
        "$schema": _DIALECT,
        "title": title,
        **body,
        "properties": properties,
        "required": ["schema", *body["required"]],
        "$defs": definitions,
    }


def _object(kind: type[Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a dataclass or a TypedDict; nested classes become definitions."""
    texts = descriptions(kind)
    hints = get_type_hints(kind)
    properties = {
        name: {
            **_schema_of(annotation, definitions),
            **({"description": texts[name]} if name in texts else {}),
        }
        for name, annotation in hints.items()
    }
    if is_typeddict(kind):  # readers accept further keys
        return {
            "type": "object",
            "properties": properties,
            "required": sorted(kind.__required_keys__),
        }
    return {
        "type": "object",
        "properties": properties,
        "required": [*hints],
        "additionalProperties": False,
    }


def _schema_of(kind: object, definitions: dict[str, Any]) -> dict[str, Any]:
    origin = get_origin(kind)
    inner = get_args(kind)
    if kind is Any:
        return {}
    if origin in (Union, UnionType):
        return {"anyOf": [_schema_of(one, definitions) for one in inner]}
    if origin in (tuple, list):
        return {"type": "array", "items": _schema_of(inner[0], definitions)}
    if origin is not None:
        values = _schema_of(inner[1], definitions)
        return {"type": "object", "additionalProperties": values} | (
            {"propertyNames": {"pattern": r"^\d+$"}} if inner[0] is int else {}
        )
    if kind is NumberRanges:
        return {"type": "string", "pattern": PATTERN}
    if isinstance(kind, type) and issubclass(kind, enum.StrEnum):
        return {"enum": [item.value for item in kind]}
    if isinstance(kind, type) and (
        dataclasses.is_dataclass(kind) or is_typeddict(kind)
    ):
        if kind.__name__ not in definitions:
            definitions[
                kind.__name__
            ] = {}  # reserved, for a class that contains itself
            definitions[kind.__name__] = _object(kind, definitions)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    return {"type": _SIMPLE[kind]}
