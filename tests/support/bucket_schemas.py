"""Validation of the JSON files in a folder bucket against the schemas of the documentation."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

from ci_build.docs.schema import SCHEMAS

_KEYS = {
    r"v2(-staging)?/.+/evidence/[^/]+/[^/]+/[^/]+\.json": "evidence.schema.json",
    r"v2(-staging)?/.+/evidence/.+\.json\.sig": "signature.schema.json",
    r"v2(-staging)?/.+/wheels\.json": "wheels.schema.json",
    r"v2/[^/]+/ledger/\d+\.json": "ledger-entry.schema.json",
    r"v2/[^/]+/status\.json": "status.schema.json",
    r"v2/[^/]+/sets/[^/]+/summary-[0-9a-f]+\.json": "summary.schema.json",
}


def validate_bucket(bucket: Path) -> Counter[str]:
    """Validate every file that has a schema, and return the number of files for each schema.

    Raises:
        AssertionError: files differ from their schemas.
    """
    import jsonschema  # Imported late: it takes more than a second.

    checkers = {
        name: jsonschema.Draft202012Validator(SCHEMAS[name]())
        for name in _KEYS.values()
    }
    checked = Counter[str]()
    problems = []
    for path in sorted(bucket.rglob("*")):
        key = path.relative_to(bucket).as_posix()
        if name := next(
            (name for pattern, name in _KEYS.items() if re.fullmatch(pattern, key)), ""
        ):
            checked[name] += 1
            problems += [
                f"{key}: {error.message}"
                for error in checkers[name].iter_errors(json.loads(path.read_bytes()))
            ]
    assert problems == []
    return checked
