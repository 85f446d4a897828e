"""Provenance files beside wheels (PEP 740), parsed with the standard library alone.

This module checks that a file names its wheel. `attestation_verification` verifies its
format and the signatures.
"""

from __future__ import annotations

import base64
import json
from itertools import chain

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
        bundles = json.loads(data)["attestation_bundles"]
        attestations = [*chain.from_iterable(one["attestations"] for one in bundles)]
        if not attestations:
            raise ValueError("it contains no attestation")
        for attestation in attestations:
            _check(attestation["envelope"]["statement"], filename, sha256)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problem = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        name = provenance_name(filename)
        return (f"{name} is not the provenance of its wheel: {problem}.",)
    return ()


def _check(text: str, filename: str, sha256: str) -> None:
    """Raise when the statement of an attestation is damaged or not for the wheel."""
    statement = json.loads(base64.b64decode("".join(text.split()), validate=True))
    kinds = (statement["_type"], statement["predicateType"])
    if kinds not in ((STATEMENT_TYPE, PUBLISH), (STATEMENT_TYPE, SLSA)):
        raise ValueError(f"an attestation has the unsupported type {kinds[1]!r}")
    (subject,) = statement["subject"]
    if (subject["name"], subject["digest"]["sha256"]) != (filename, sha256):
        raise ValueError(
            f"it names {subject['name']} with sha256 {subject['digest']['sha256']}"
        )
