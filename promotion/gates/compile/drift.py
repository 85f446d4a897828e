"""Differences between the compiled code of a set and of the set promoted last.

They are never errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.model import Finding, Severity
from core.units import human
from promotion.evidence.evidence import latest, load_evidence
from promotion.gates.common.gate_context import warning
from promotion.index.publish import read_head
from promotion.storage.bucket import Bucket
from promotion.storage.object_keys import EVIDENCE_FOLDER, ReleasedIndex

GATE_NAME = "compile"
_EVIDENCE = re.compile(rf"{EVIDENCE_FOLDER}/{GATE_NAME}/.+\.json")
GROWTH = 0.2
"""Relative growth of a program's code above which a warning is reported."""

Code = Mapping[str, Sequence[Mapping[str, Any]]]
"""Program -> its code objects in order, each with `size` and `sha256`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreviousCode:
    """Compiled code of the set that was promoted last.

    Attributes:
        set_digest: digest of the set; empty if no set was promoted.
        code: code by gfx target.
    """

    set_digest: str = ""
    code: Mapping[str, Code] = field(default_factory=dict)


def previous_code(bucket: Bucket, index: str, jax_version: str) -> PreviousCode:
    """Return the code of the newest set of an index, preferably of a set for the same jax version.

    Raises:
        BucketError: the ledger or evidence cannot be read.
    """
    released = ReleasedIndex(index=index)
    head, entries = read_head(bucket, released)
    newest = [
        entries.set(number) for number in sorted(head.state.visible, reverse=True)
    ]
    if not newest:
        return PreviousCode()
    same = [promoted for promoted in newest if promoted.jax_version == jax_version]
    promoted = (same or newest)[0]
    names = [name for name in promoted.files if _EVIDENCE.fullmatch(name)]
    keys = [released.set_file(promoted.set_digest, name) for name in names]
    last = latest(load_evidence(bucket.get(key), key) for key in keys)
    code = {
        target: code_of_checks(evidence.details.get("checks", ()))
        for (_, target), evidence in last.items()
    }
    return PreviousCode(set_digest=promoted.set_digest, code=code)


def code_of_checks(checks: Iterable[Mapping[str, Any]]) -> Code:
    """Return the code in the checks of evidence."""
    return {check["name"]: check["code"] for check in checks if check.get("code")}


def _digests(objects: Sequence[Mapping[str, Any]]) -> list[str]:
    return [item["sha256"] for item in objects]


def compare(
    before: PreviousCode, target: str, now: Code
) -> tuple[list[Finding], Mapping[str, Any]]:
    """Compare the code of one target with the set promoted last.

    Returns:
        A warning for each program whose code grew and a note on all changes; and the
        names of the programs with new and with changed code, for the evidence.
    """
    old = before.code.get(target, {})
    new = [program for program in now if program not in old]
    changed = []
    for program in now.keys() & old.keys():
        if _digests(old[program]) != _digests(now[program]):
            changed.append(program)
    changed.sort()
    since = f"since set {before.set_digest[:12]}, which was promoted last"
    findings = []
    for program in changed:
        size = sum(item["size"] for item in old[program])
        grown = sum(item["size"] for item in now[program])
        if grown > size * (1 + GROWTH):
            text = (
                f"{target} {program}: its code grew from {human(size)} to"
                f" {human(grown)} {since}."
            )
            remedy = "Check the program's speed; this does not block promotion."
            findings.append(warning("code-grown", text, remedy))
    if new or changed:
        text = (
            f"{target}: changed code in {len(changed)} programs, new code in {len(new)}"
            f" {since}."
        )
        note = Finding(
            code="code-drift", severity=Severity.NOTE, message=text, remedy=""
        )
        findings.append(note)
    return findings, {"since": before.set_digest, "new": new, "changed": changed}
