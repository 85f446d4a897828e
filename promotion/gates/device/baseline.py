"""What ran the last time a set was promoted: a run that does much less is no proof."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from core.model import Finding, Outcome, Severity
from promotion.evidence.evidence import latest_by_part, load_evidence
from promotion.evidence.known_tests import KnownTest, KnownTests
from promotion.gates.common.gate import error
from promotion.gates.device.results import TestResult
from promotion.gates.device.sessions.passes import ALL, MULTI
from promotion.gates.device.suite import TESTS, suite_sizes
from promotion.index.publish import read_head
from promotion.storage.bucket import Bucket
from promotion.storage.keys import EVIDENCE_FOLDER, ReleasedIndex

LEAST_RUN, MOST_SKIPPED, SKIPPED_SLACK = 0.95, 1.10, 10
"""Of what was run before; of what was skipped before, and so many more, since a few come and go with each JAX."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """What one gate said of one target of the set that was promoted last.

    Attributes:
        set_digest: empty when there is none to compare with.
        results: key of the results of its tests; empty where there are none.
    """

    set_digest: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    results: str = ""


_ALIKE = ("platform", "size", "passes")
"""Settings that have to be the same for numbers to be compared."""


def baseline(
    bucket: Bucket, index: str, gate: str, target: str, settings: Mapping[str, str], alike: Sequence[str] = _ALIKE
) -> Baseline:
    """What the gate said of the newest visible set on which it ran alike, and passed.

    Args:
        settings: of the run that is to be compared.
        alike: those of them that have to be the same.

    Raises:
        BucketError: a ledger or evidence that cannot be read.
    """
    released = ReleasedIndex(index=index)
    head, entries = read_head(bucket, released)
    wanted = re.compile(rf"{EVIDENCE_FOLDER}/{re.escape(gate)}/{re.escape(target.replace(':', '~'))}/[0-9a-f]+\.json")
    for number in sorted(head.state.visible, reverse=True):
        promoted = entries.set(number)
        keys = [released.set_file(promoted.set_digest, name) for name in promoted.files if wanted.fullmatch(name)]
        words = latest_by_part(load_evidence(bucket.get(key), key) for key in keys)
        good = [said for said in words if said.outcome is Outcome.PASSED]
        like = [said for said in good if all(said.settings.get(name) == settings.get(name) for name in alike)]
        if said := max(like, key=lambda said: said.ended, default=None):
            results = next((name for name in promoted.files if _is_results(name, said.details)), "")
            return Baseline(
                set_digest=promoted.set_digest,
                counts=said.counts,
                results=released.set_file(promoted.set_digest, results) if results else "",
            )
    return Baseline()


def _is_results(name: str, details: Mapping[str, object]) -> bool:
    checks = details.get("checks")
    for check in checks if isinstance(checks, list) else []:
        files = check.get("files") if isinstance(check, dict) else None
        if isinstance(files, dict) and "results.json.gz" in files:
            return name == f"{EVIDENCE_FOLDER}/{files['results.json.gz']['name']}"
    return False


def compare_with_baseline(run: int, skipped: int, before: Baseline) -> Iterator[Finding]:
    """What is missing in comparison; nothing when there is nothing to compare with."""
    if not before.set_digest:
        return
    least = int(before.counts.get("run", 0) * LEAST_RUN)
    most = int(before.counts.get("skipped", 0) * MOST_SKIPPED) + SKIPPED_SLACK
    set_ = f"set {before.set_digest[:16]}, which was promoted last"
    if run < least:
        text = f"{run} tests were executed; {before.counts.get('run', 0)} were for {set_}, and {least} are asked for."
        yield error("too-few-tests", text, "See what was not collected, or skipped, and why.")
    if skipped > most:
        text = f"{skipped} tests were skipped; {before.counts.get('skipped', 0)} were for {set_}, and {most} may be."
        yield error("too-many-skipped", text, "See why they were skipped.")


def check_ledgers(known: KnownTests, results: Sequence[TestResult], settings: Mapping[str, str]) -> Iterator[Finding]:
    """Entries of the ledgers that did nothing: because their time is over, or because they match no test.

    Args:
        settings: of the run. Only one of a whole suite can tell that it has no such test.
    """
    tests = [result.id for result in results]
    for entry, count in known.missed(tests):
        text = f"{entry.id} in ledgers/{entry.kind}.toml {entry.state(known.today)}; it would be for {count} tests."
        remedy = f"Ask {entry.owner}, or remove it."
        yield Finding(code="ledger-over", severity=Severity.WARNING, message=text, remedy=remedy)
    for entry in known.idle(tests):
        if not _is_about(entry, settings):
            continue
        text = f"{entry.id} in ledgers/{entry.kind}.toml matches no test of this suite."
        yield Finding(
            code="ledger-idle", severity=Severity.WARNING, message=text, remedy="Mend its pattern, or remove it."
        )


def _is_about(entry: KnownTest, settings: Mapping[str, str]) -> bool:
    """Whether a run was of the whole suite that an entry is about: the tests of our own one lie in no folder."""
    size, passes = settings["size"], settings["passes"].split()
    whole = MULTI in passes or ALL in passes
    if not size:
        return whole and "/" not in entry.pattern.partition("::")[0]
    return whole and suite_sizes()[size].files == (TESTS,) and not entry.pattern.startswith("test_")
