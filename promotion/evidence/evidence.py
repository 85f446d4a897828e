"""Evidence files: each run of a gate creates one beside the staged set, with its signature.

The output of the gate's processes is stored beside the evidence and named after its own
digest. The signature is stored before the evidence, so signed evidence is never visible
without its signature.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from datetime import UTC, datetime, timedelta
from typing import Any

from core.digests import sha256_of
from core.errors import BucketError, RequestError
from core.frozen import frozen
from core.model import Evidence, Outcome, Severity, Tier, to_json
from promotion.evidence.signing import (
    EVIDENCE_TYPE,
    SUFFIX,
    Signer,
    is_valid_signature,
    load_signature,
)
from promotion.storage.bucket import Bucket
from promotion.storage.concurrency import map_concurrently
from promotion.storage.object_keys import EVIDENCE_FOLDER, StagedSet
from promotion.storage.stored_records import dump_record, stored_record
from wheelkit.findings import some

SCHEMA_VERSION = 3
ENVIRONMENT = "environment"
"""Code of a finding about the machine that ran a gate, not about the set."""
ANY = "any"
"""Target in the evidence of a gate that does not depend on a gfx target."""
PARTS = ("python", "size", "passes", "corpus", "installers")
"""Settings that limit evidence to a part of a gate.

Evidence of one part does not replace that of another.
"""
NEEDS_DEVICE = "needs_device"
"""Key of a check that failed only because the machine has no GPU."""
CLOCK_SKEW = timedelta(minutes=5)
"""Accepted difference between the clocks of two machines."""
TIME = "%Y-%m-%dT%H:%M:%SZ"
"""Format of times in evidence; sorting these texts sorts the times."""

_BAD_FIRST = (Outcome.ERROR, Outcome.FAILED, Outcome.SKIPPED, Outcome.PASSED)


@frozen
class EvidenceFile:
    """An evidence file and its signature.

    Attributes:
        key: public key of a valid signature, or empty.
        flaw: problem of the file or of its signature, or empty.
        digests: key -> sha256 of both files as they were read.
    """

    evidence: Evidence
    key: str = ""
    flaw: str = ""
    digests: Mapping[str, str] = field(default_factory=dict, compare=False)


def now() -> str:
    """Return the current time in the format of evidence."""
    return datetime.now(UTC).strftime(TIME)


def dump_evidence(evidence: Evidence) -> bytes:
    """Return the text of an evidence file."""
    return dump_record(to_json(evidence), schema=SCHEMA_VERSION)


def load_evidence(data: bytes, key: str) -> Evidence:
    """Parse an evidence file; BucketError when a field is missing, unknown or of the wrong type."""
    return stored_record(data, Evidence, key, schema=SCHEMA_VERSION)


def time_of(text: str) -> datetime | None:
    """Parse a time in evidence, or return None."""
    try:
        time = datetime.strptime(text, TIME).replace(tzinfo=UTC)
    except ValueError:
        return None
    # strptime accepts missing zeros.
    return time if time.strftime(TIME) == text else None


def record(
    bucket: Bucket,
    staged: StagedSet,
    evidence: Evidence,
    *,
    signer: Signer | None = None,
) -> str:
    """Store evidence beside its set and return its key, which contains a digest."""
    if evidence.set_digest != staged.digest:
        raise BucketError(
            f"Evidence of the gate {evidence.gate} is for set {evidence.set_digest},"
            f" not {staged.digest}.",
            hint="Run the gate on the staged set.",
        )
    data = dump_evidence(evidence)
    signature = signer.sign(data, EVIDENCE_TYPE).dump() if signer else b""
    key = staged.evidence_file(
        evidence.gate, evidence.target, f"{sha256_of(data + signature)[:16]}.json"
    )
    if signature:
        bucket.put_if_absent(key + SUFFIX, signature, sha256=sha256_of(signature))
    bucket.put_if_absent(key, data, sha256=sha256_of(data))
    return key


def record_log(
    bucket: Bucket, staged: StagedSet, gate: str, text: str
) -> Mapping[str, str]:
    """Store the output of a gate's processes and return the value of `Evidence.logs`."""
    data = text.encode(errors="replace")
    digest = sha256_of(data)
    key = staged.evidence_log(gate, digest[:16])
    bucket.put_if_absent(key, data, sha256=digest)
    return {key.removeprefix(staged.evidence): digest}


def read_all(bucket: Bucket, staged: StagedSet) -> Mapping[str, EvidenceFile]:
    """Return key -> evidence file of a staged set."""
    return read_files(bucket, bucket.list(staged.evidence))


def read_files(bucket: Bucket, keys: Iterable[str]) -> Mapping[str, EvidenceFile]:
    """Return key -> evidence file among the keys of evidence, its logs and its signatures."""
    keys = tuple(keys)
    signed = {key for key in keys if key.endswith(SUFFIX)}
    names = [key for key in keys if key.endswith(".json")]
    files = map_concurrently(
        lambda key: _read(bucket, key, signed=key + SUFFIX in signed), names
    )
    return dict(zip(names, files, strict=True))


def _read(bucket: Bucket, key: str, *, signed: bool) -> EvidenceFile:
    data = bucket.get(key)
    digests = {key: sha256_of(data)}
    signer = ""
    flaw = ""
    if signed:
        text = bucket.get(key + SUFFIX)
        digests[key + SUFFIX] = sha256_of(text)
        try:
            signature = load_signature(text, key + SUFFIX)
            if is_valid_signature(data, EVIDENCE_TYPE, signature):
                signer = signature.key
            else:
                flaw = f"{key + SUFFIX} is not the signature of {key}."
        except RequestError as error:
            flaw = error.message
    try:
        evidence = load_evidence(data, key)
    except BucketError as error:
        evidence = _unreadable(key)
        flaw = error.message
    return EvidenceFile(evidence=evidence, key=signer, flaw=flaw, digests=digests)


def _unreadable(key: str) -> Evidence:
    """Return a failure in place of a damaged file, which anybody may have stored."""
    root, _, name = key.partition(f"/{EVIDENCE_FOLDER}/")
    gate, _, rest = name.partition("/")
    return Evidence(
        set_digest=root.rpartition("/")[2],
        gate=gate,
        target=rest.partition("/")[0].replace("~", ":"),
        tier=Tier.STRUCTURE,
        outcome=Outcome.FAILED,
        started="",
        ended="",
        machine="",
        settings={},
        counts={},
    )


def latest_by_part(evidences: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """Return the latest evidence of each gate, target and part.

    Within the same second, the worst outcome.
    """
    last: dict[tuple[str, ...], Evidence] = {}
    for evidence in sorted(evidences, key=lambda item: (item.ended, -_badness(item))):
        part = (evidence.settings.get(name, "") for name in PARTS)
        last[evidence.gate, evidence.target, *part] = evidence
    return tuple(last.values())


def _badness(evidence: Evidence) -> int:
    return _BAD_FIRST.index(evidence.outcome)


def latest_by_target(
    evidences: Iterable[Evidence],
) -> Mapping[tuple[str, str], tuple[Evidence, ...]]:
    """Return (gate, target) -> latest evidence of each part, worst and newest first."""
    by_target: dict[tuple[str, str], tuple[Evidence, ...]] = {}
    newest = sorted(
        latest_by_part(evidences), key=lambda item: item.ended, reverse=True
    )
    for evidence in sorted(newest, key=_badness):
        key = (evidence.gate, evidence.target)
        by_target[key] = (*by_target.get(key, ()), evidence)
    return by_target


def latest(evidences: Iterable[Evidence]) -> Mapping[tuple[str, str], Evidence]:
    """Return (gate, target) -> decisive evidence.

    The worst outcome of all parts, the newest if several are equal.
    """
    return {about: pieces[0] for about, pieces in latest_by_target(evidences).items()}


def check_records(evidence: Evidence) -> list[Mapping[str, Any]]:
    """Return the records of single checks in evidence."""
    checks = evidence.details.get("checks")
    if not isinstance(checks, list | tuple):
        return []
    return [check for check in checks if isinstance(check, dict)]


def failing_programs(evidence: Evidence) -> str:
    """Return how many compiled programs fail, and which; empty if none does.

    Programs that fail only because there is no GPU say nothing about the user's GPU.
    """
    ran: list[str] = []
    failing: list[str] = []
    for check in check_records(evidence):
        name = str(check.get("name"))
        if "." not in name or check.get("outcome") == "skipped":
            continue
        if check.get(NEEDS_DEVICE):
            continue
        ran.append(name)
        if check.get("outcome") != "passed":
            failing.append(name)
    if not failing:
        return ""
    return f"{len(failing)} of {len(ran)} programs fail: {some(failing)}"


def files_beside(evidence: Evidence) -> Mapping[str, str]:
    """Return name -> sha256 of the logs and test results that lie beside evidence."""
    beside = dict(evidence.logs)
    for check in check_records(evidence):
        files = check.get("files")
        for file in files.values() if isinstance(files, dict) else ():
            if isinstance(file, dict):
                beside[str(file.get("name"))] = str(file.get("sha256"))
    return beside


def is_machine_failure(evidence: Evidence) -> bool:
    """Return whether a gate failed for reasons of the machine alone."""
    codes = {
        finding.code
        for finding in evidence.findings
        if finding.severity is Severity.ERROR
    }
    return evidence.outcome is Outcome.ERROR and codes == {ENVIRONMENT}
