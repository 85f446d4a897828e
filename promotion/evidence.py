"""Evidence on disk: one file for each run of a gate, beside the staged set, created once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from ci_build.errors import BucketError
from ci_build.model import Evidence, Finding, Outcome, Severity, Tier, to_json
from promotion.bucket import Bucket, sha256_of
from promotion.layout import StagedSet

SCHEMA_VERSION = 2
ANY = "any"
"""The target of a gate that does not depend on one."""

_BAD_FIRST = (Outcome.ERROR, Outcome.FAILED, Outcome.SKIPPED, Outcome.PASSED)


def dump_evidence(evidence: Evidence) -> bytes:
    """The text of an evidence file."""
    body = {"schema": SCHEMA_VERSION, **to_json(evidence)}
    return (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode()


def load_evidence(data: bytes, key: str) -> Evidence:
    """Read an evidence file; BucketError when it is not one of this schema, field by field."""
    try:
        body = json.loads(data)
        schema = body.pop("schema")
        if schema != SCHEMA_VERSION:
            raise BucketError(
                f"{key} has schema {schema!r}, this program reads {SCHEMA_VERSION}.",
                hint="Another version of this program gated the set: give another --bucket.",
            )
        body["tier"], body["outcome"] = Tier(body["tier"]), Outcome(body["outcome"])
        body["findings"] = tuple(
            Finding(**{**finding, "severity": Severity(finding["severity"])}) for finding in body["findings"]
        )
        return Evidence(**body)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BucketError(f"{key} cannot be read: {error!r}.", hint="Run the gate again.") from error


def record(bucket: Bucket, staged: StagedSet, evidence: Evidence) -> str:
    """Put evidence beside the set that it names; returns its key, which holds a digest of its content."""
    if evidence.set_digest != staged.digest:
        raise BucketError(
            f"Evidence of the gate {evidence.gate} names set {evidence.set_digest}, not {staged.digest}.",
            hint="Run the gate on the staged set.",
        )
    data = dump_evidence(evidence)
    digest = sha256_of(data)
    key = staged.evidence_file(evidence.gate, evidence.target, digest[:16])
    bucket.put_if_absent(key, data, sha256=digest)
    return key


def read_all(bucket: Bucket, staged: StagedSet) -> Mapping[str, Evidence]:
    """All evidence beside a staged set, by key."""
    return {key: load_evidence(bucket.get(key), key) for key in bucket.list(staged.evidence)}


def latest(evidences: Iterable[Evidence]) -> Mapping[tuple[str, str], Evidence]:
    """What each gate last said on each target; of two words in the same second the worse one counts."""
    last: dict[tuple[str, str], Evidence] = {}
    for evidence in sorted(evidences, key=lambda item: (item.ended, -_BAD_FIRST.index(item.outcome))):
        last[evidence.gate, evidence.target] = evidence
    return last
