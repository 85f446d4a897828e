"""Evidence on disk: one file for each run of a gate, beside the staged set, created once, with who signed it.

What the gate's processes printed lies beside it, named after its digest; the signature comes before the evidence, so
that evidence which was to be signed is never seen without.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from core.errors import BucketError, RequestError
from core.model import Evidence, Finding, Outcome, Severity, Tier, to_json
from promotion.evidence.signing import EVIDENCE_TYPE, SUFFIX, Signer, is_valid_signature, load_signature
from promotion.storage.bucket import Bucket, sha256_of
from promotion.storage.concurrency import map_concurrently
from promotion.storage.keys import StagedSet

SCHEMA_VERSION = 3
ENVIRONMENT = "environment"
"""The code of a finding about the machine that a gate ran on, which says nothing of the set."""
ANY = "any"
"""The target of a gate that does not depend on one."""
PARTS = ("python", "size", "passes", "corpus")
"""Settings by which a gate's evidence is about one part of what it could try: no part takes back what another said."""
TIME = "%Y-%m-%dT%H:%M:%SZ"
"""How evidence writes a time; in this form the order of texts is that of times."""

_BAD_FIRST = (Outcome.ERROR, Outcome.FAILED, Outcome.SKIPPED, Outcome.PASSED)


@dataclass(frozen=True, kw_only=True, slots=True)
class EvidenceFile:
    """Evidence, and who stands for it.

    Attributes:
        key: public key that signed it; empty when nobody did, or when the signature is not of it.
        flaw: what is wrong with the signature that lies beside it; empty when nothing is.
    """

    evidence: Evidence
    key: str = ""
    flaw: str = ""


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
        for name in ("set_digest", "gate", "target", "started", "ended"):
            if not isinstance(body[name], str):
                raise TypeError(f"{name} is no text")
        for name in ("counts", "settings", "logs", "details"):
            if not isinstance(body[name], dict):
                raise TypeError(f"{name} is no table")
        return Evidence(**body)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BucketError(f"{key} cannot be read: {error!r}.", hint="Run the gate again.") from error


def time_of(text: str) -> datetime | None:
    """A time as evidence writes it; None when it is not one."""
    try:
        time = datetime.strptime(text, TIME).replace(tzinfo=UTC)
    except ValueError:
        return None
    # strptime is generous about missing zeros.
    return time if time.strftime(TIME) == text else None


def record(bucket: Bucket, staged: StagedSet, evidence: Evidence, *, signer: Signer | None = None) -> str:
    """Put evidence beside the set that it names; returns its key, which holds a digest of it and of its signature."""
    if evidence.set_digest != staged.digest:
        raise BucketError(
            f"Evidence of the gate {evidence.gate} names set {evidence.set_digest}, not {staged.digest}.",
            hint="Run the gate on the staged set.",
        )
    data = dump_evidence(evidence)
    signature = signer.sign(data, EVIDENCE_TYPE).dump() if signer else b""
    key = staged.evidence_file(evidence.gate, evidence.target, sha256_of(data + signature)[:16])
    if signature:
        bucket.put_if_absent(key + SUFFIX, signature, sha256=sha256_of(signature))
    bucket.put_if_absent(key, data, sha256=sha256_of(data))
    return key


def record_log(bucket: Bucket, staged: StagedSet, gate: str, text: str) -> Mapping[str, str]:
    """Put what a gate's processes printed beside the set, once; returns `Evidence.logs`."""
    data = text.encode(errors="replace")
    digest = sha256_of(data)
    key = staged.evidence_log(gate, digest[:16])
    bucket.put_if_absent(key, data, sha256=digest)
    return {key.removeprefix(staged.evidence): digest}


def read_all(bucket: Bucket, staged: StagedSet) -> Mapping[str, EvidenceFile]:
    """All evidence beside a staged set, by key."""
    keys = tuple(bucket.list(staged.evidence))
    signed = {key for key in keys if key.endswith(SUFFIX)}
    files = [key for key in keys if key.endswith(".json")]
    return dict(
        zip(files, map_concurrently(lambda key: _read(bucket, key, signed=key + SUFFIX in signed), files), strict=True)
    )


def _read(bucket: Bucket, key: str, *, signed: bool) -> EvidenceFile:
    data = bucket.get(key)
    evidence = load_evidence(data, key)
    if not signed:
        return EvidenceFile(evidence=evidence)
    try:
        signature = load_signature(bucket.get(key + SUFFIX), key + SUFFIX)
    except RequestError as error:
        return EvidenceFile(evidence=evidence, flaw=error.message)
    if not is_valid_signature(data, EVIDENCE_TYPE, signature):
        return EvidenceFile(evidence=evidence, flaw=f"{key + SUFFIX} is not the signature of {key}.")
    return EvidenceFile(evidence=evidence, key=signature.key)


def latest_by_part(evidences: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """What each gate last said on each part of each target; of two words in the same second the worse one counts."""
    last: dict[tuple[str, ...], Evidence] = {}
    for evidence in sorted(evidences, key=lambda item: (item.ended, -_BAD_FIRST.index(item.outcome))):
        part = (evidence.settings.get(name, "") for name in PARTS)
        last[evidence.gate, evidence.target, *part] = evidence
    return tuple(last.values())


def latest_by_target(evidences: Iterable[Evidence]) -> Mapping[tuple[str, str], tuple[Evidence, ...]]:
    """The last words of each gate on the parts of each target, the worst ones first, of equals the newest."""
    found: dict[tuple[str, str], tuple[Evidence, ...]] = {}
    newest = sorted(latest_by_part(evidences), key=lambda item: item.ended, reverse=True)
    for evidence in sorted(newest, key=lambda item: _BAD_FIRST.index(item.outcome)):
        found[evidence.gate, evidence.target] = (*found.get((evidence.gate, evidence.target), ()), evidence)
    return found


def latest(evidences: Iterable[Evidence]) -> Mapping[tuple[str, str], Evidence]:
    """What counts of each gate on each target: the worst of its last words on the parts, the newest of equals."""
    return {about: words[0] for about, words in latest_by_target(evidences).items()}


def is_machine_failure(evidence: Evidence) -> bool:
    """Whether a gate could not run for reasons of the machine alone, so that nothing is said of the set."""
    found = {finding.code for finding in evidence.findings if finding.severity is Severity.ERROR}
    return evidence.outcome is Outcome.ERROR and ENVIRONMENT in found
