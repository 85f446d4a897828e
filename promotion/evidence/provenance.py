"""Provenance files beside wheels (PEP 740), parsed with the standard library alone.

This module checks that a file has the right format and names its wheel.
`attestation_verification` verifies the signatures.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

from promotion.storage.object_keys import PROVENANCE_SUFFIX

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PUBLISH = "https://docs.pypi.org/attestations/publish/v1"
SLSA = "https://slsa.dev/provenance/v1"


def provenance_name(filename: str) -> str:
    """Return the name of the provenance file of a wheel."""
    return filename + PROVENANCE_SUFFIX


def provenance_problems(data: bytes, filename: str, sha256: str) -> tuple[str, ...]:
    """Return one sentence if a provenance file is damaged or omits the wheel."""
    try:
        body = json.loads(data)
        if body["version"] != 1:
            raise ValueError(f"unsupported version {body['version']!r}")
        attestations = []
        for bundle in body["attestation_bundles"]:
            attestations.extend(_attestations(bundle))
        if not attestations:
            raise ValueError("it contains no attestation")
        for attestation in attestations:
            _check(attestation, filename, sha256)
    except (KeyError, TypeError, ValueError, AttributeError, binascii.Error) as error:
        problem = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        return (
            (
                f"{provenance_name(filename)} is not the provenance of its wheel:"
                f" {problem}."
            ),
        )
    return ()


def _attestations(bundle: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if not isinstance(bundle["publisher"]["kind"], str) or not isinstance(
        bundle["attestations"], list
    ):
        raise TypeError("a bundle has no publisher or no attestations")
    return bundle["attestations"]


def _check(attestation: Mapping[str, Any], filename: str, sha256: str) -> None:
    """Raise when an attestation is damaged or not for the wheel."""
    if attestation["version"] != 1:
        raise ValueError(
            f"an attestation has the unsupported version {attestation['version']!r}"
        )
    material = attestation["verification_material"]
    for name, text in (
        ("certificate", material["certificate"]),
        ("signature", attestation["envelope"]["signature"]),
    ):
        if not base64.b64decode("".join(text.split()), validate=True):
            raise ValueError(f"an attestation has an empty {name}")
    if not material["transparency_entries"]:
        raise ValueError("an attestation has no entry of a transparency log")
    statement = json.loads(
        base64.b64decode(
            "".join(attestation["envelope"]["statement"].split()), validate=True
        )
    )
    if statement["_type"] != STATEMENT_TYPE or statement["predicateType"] not in (
        PUBLISH,
        SLSA,
    ):
        raise ValueError(
            f"an attestation has the unsupported type {statement['predicateType']!r}"
        )
    (subject,) = statement["subject"]
    if (subject["name"], subject["digest"]["sha256"]) != (filename, sha256):
        raise ValueError(
            f"it names {subject['name']} with sha256 {subject['digest']['sha256']}"
        )
