"""Differences of the compiled code from the set that was promoted last; they are information, not errors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.model import Finding, Severity
from core.units import human
from promotion.evidence.evidence import latest, load_evidence
from promotion.index.ledger import PromotedSet
from promotion.index.publish import read_head
from promotion.storage.bucket import Bucket
from promotion.storage.keys import EVIDENCE_FOLDER, ReleasedIndex

GATE_NAME = "compile"
_EVIDENCE = re.compile(rf"{EVIDENCE_FOLDER}/{GATE_NAME}/.+\.json")
GROWTH = 0.2
"""Growth of code, as a share, above which there is a warning."""

Code = Mapping[str, Sequence[Mapping[str, Any]]]
"""Program -> its code objects in order, each with `size` and `sha256`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreviousCode:
    """Compiled code of the set that was promoted last.

    Attributes:
        set_digest: digest of the set; empty without one.
        code: code by gfx target.
    """

    set_digest: str = ""
    code: Mapping[str, Code] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Drift:
    """Programs with new or changed code, in order.

    Attributes:
        new: programs without earlier code.
        changed: programs with different code.
        grown: changed programs that grew by more than GROWTH -> bytes before and now.
    """

    new: tuple[str, ...]
    changed: tuple[str, ...]
    grown: Mapping[str, tuple[int, int]]


def previous_code(bucket: Bucket, index: str, jax_version: str) -> PreviousCode:
    """Return the code of the newest set of an index, preferably one for the same jax version.

    Raises:
        BucketError: the ledger or evidence cannot be read.
    """
    released = ReleasedIndex(index=index)
    promoted = _newest(bucket, released, jax_version)
    if promoted is None:
        return PreviousCode()
    names = [name for name in promoted.files if _EVIDENCE.fullmatch(name)]
    keys = [released.set_file(promoted.set_digest, name) for name in names]
    last = latest(load_evidence(bucket.get(key), key) for key in keys)
    code = {target: code_of_checks(evidence.details.get("checks", ())) for (_, target), evidence in last.items()}
    return PreviousCode(set_digest=promoted.set_digest, code=code)


def _newest(bucket: Bucket, released: ReleasedIndex, jax_version: str) -> PromotedSet | None:
    """Return the newest visible set for a jax version, or the newest of all."""
    head, entries = read_head(bucket, released)
    newest: PromotedSet | None = None
    for number in sorted(head.state.visible, reverse=True):
        promoted = entries.set(number)
        if promoted.jax_version == jax_version:
            return promoted
        newest = newest or promoted
    return newest


def code_of_checks(checks: Iterable[Mapping[str, Any]]) -> Code:
    """Return the code in the checks of evidence."""
    return {check["name"]: check["code"] for check in checks if check.get("code")}


def compare(before: Code, now: Code) -> Drift:
    """Compare the code of one target."""
    common = [program for program in now if program in before]
    changed = [program for program in common if _digests(before[program]) != _digests(now[program])]
    sizes = {program: (_size(before[program]), _size(now[program])) for program in changed}
    return Drift(
        new=tuple(program for program in now if program not in before),
        changed=tuple(changed),
        grown={name: (old, new) for name, (old, new) in sizes.items() if new > old * (1 + GROWTH)},
    )


def findings(drift: Drift, target: str, set_digest: str) -> tuple[Finding, ...]:
    """Return a warning for each program whose code grew, and a note on the other changes."""
    since = f"since set {set_digest[:12]}, which was promoted last"
    grown = [
        Finding(
            code="code-grown",
            severity=Severity.WARNING,
            message=f"{target} {program}: its code grew from {human(old)} to {human(new)} {since}.",
            remedy="Check its speed; this does not block promotion.",
        )
        for program, (old, new) in drift.grown.items()
    ]
    if not drift.new and not drift.changed:
        return tuple(grown)
    text = f"{target}: the code of {len(drift.changed)} programs changed and of {len(drift.new)} is new {since}."
    return (*grown, Finding(code="code-drift", severity=Severity.NOTE, message=text, remedy=""))


def _digests(code: Sequence[Mapping[str, Any]]) -> list[str]:
    return [held["sha256"] for held in code]


def _size(code: Sequence[Mapping[str, Any]]) -> int:
    return sum(held["size"] for held in code)
