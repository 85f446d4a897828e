"""The files that a promotion writes beside a set.

A report for people, its content, and hash-locked requirements.

They depend on the set and its evidence alone, so the same promotion writes the same
bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from core.errors import CiBuildError
from core.model import (
    PYLOCK,
    SHA256SUMS,
    WHEELS_JSON,
    Evidence,
    Outcome,
    Severity,
    WheelSet,
)
from core.versions import KERNELS_PROJECT
from promotion.compatibility.module_support import (
    GATES,
    EvidenceChecks,
    load_spec,
    module_test,
    read_checks,
)
from promotion.evidence.evidence import (
    latest_by_target,
    read_files,
    time_of,
)
from promotion.evidence.test_results import TestResult, TestVerdict
from promotion.gates.common.set_requirements import for_pythons, hashed, locked
from promotion.gates.device.device_evidence import results_names
from promotion.index.overview import natural_key
from promotion.index.rocm_packages import extras_of
from promotion.index.set_summary import (
    LOCKED,
    REPORT,
    REQUIREMENTS,
    SUMMARY,
    SetContent,
    named,
)
from promotion.storage.bucket import Bucket
from promotion.storage.object_keys import StagedSet
from promotion.website.render import render

_ORDER = (Outcome.ERROR, Outcome.FAILED, Outcome.SKIPPED, Outcome.PASSED)
_MOST = 200
"""Number of tests of one kind, or findings, in a report; the evidence has all of them."""
_MOST_MESSAGES, _LONGEST_MESSAGE = 40_000, 2_000
"""Characters of all messages of tests of one kind, and of one of them."""


def report_files(
    bucket: Bucket,
    staged: StagedSet,
    wheel_set: WheelSet,
    tiers: Mapping[str, str],
    policy: Mapping[str, Any],
    evidence: Iterable[str],
) -> Mapping[str, bytes]:
    """Return name -> content of the files that a promotion of a set writes.

    Args:
        tiers: gfx target -> tier of the promotion.
        policy: record of the promotion, with its exceptions.
        evidence: keys of the evidence that counted.

    Raises:
        BucketError: evidence is damaged.
        GateError: the set's lock file or test results are damaged.
    """
    files_of = read_files(bucket, sorted(evidence))
    latest = latest_by_target(file.evidence for file in files_of.values())
    decisive = {id(piece) for piece in chain.from_iterable(latest.values())}
    checks = {
        key: _read(bucket, staged, file.evidence)
        for key, file in files_of.items()
        if id(file.evidence) in decisive
    }
    summary = _summary(wheel_set, checks)
    files = _requirements(bucket, staged, wheel_set)
    data = summary.dump()
    files[named(SUMMARY, ".json", data)] = data
    page = report_page(staged, wheel_set, tiers, policy, checks, summary, [*files])
    return {**files, named(REPORT, ".html", page): page}


def _read(bucket: Bucket, staged: StagedSet, evidence: Evidence) -> EvidenceChecks:
    """Return the checks of evidence.

    None if they cannot be read, since the policy judged the evidence without them.
    """
    with contextlib.suppress(
        CiBuildError,
        OSError,
        EOFError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
    ):
        if evidence.gate in GATES or [*results_names(evidence)]:
            return read_checks(bucket, staged.evidence, evidence)
    return EvidenceChecks(evidence=evidence, checks=())


def _requirements(
    bucket: Bucket, staged: StagedSet, wheel_set: WheelSet
) -> dict[str, bytes]:
    """Return the hash-locked requirements of a set without kernels, and of each GPU's ROCm.

    None for a set without a lock file.
    """
    if PYLOCK not in wheel_set.files:
        return {}
    lock = bucket.get(staged.file(PYLOCK)).decode()
    own = {wheel.name for wheel in wheel_set.wheels}
    pythons = wheel_set.python_versions
    lines = hashed(one for one in wheel_set.wheels if one.name != KERNELS_PROJECT)
    lines += for_pythons({python: locked(lock, python, own) for python in pythons})
    files = {LOCKED: "".join(f"{line}\n" for line in sorted(lines)).encode()}
    extras = extras_of(wheel_set.wheels) if wheel_set.rocm_packages else {}
    for extra, projects in extras.items():
        files[f"{REQUIREMENTS}{extra}.txt"] = "".join(
            f"{one.project}=={one.version} --hash=sha256:{one.sha256}\n"
            for one in wheel_set.rocm_packages
            if one.project in projects
        ).encode()
    return files


def _summary(wheel_set: WheelSet, checks: Mapping[str, EvidenceChecks]) -> SetContent:
    targets_of = {}
    for wheel in wheel_set.wheels:
        targets_of[wheel.filename] = tuple(sorted(wheel.targets, key=natural_key))
    tests = [module_test(module, checks.values()) for module in load_spec().module]
    return SetContent(wheels=targets_of, modules=tuple(filter(None, tests)))


def report_page(
    staged: StagedSet,
    wheel_set: WheelSet,
    tiers: Mapping[str, str],
    policy: Mapping[str, Any],
    checks: Mapping[str, EvidenceChecks],
    summary: SetContent,
    written: Sequence[str],
) -> bytes:
    """Return the report of a set.

    Args:
        checks: key of each evidence that counted -> its checks.
        written: names of the other files that the promotion writes.
    """
    rows = []
    findings = []
    unread = []
    tests = []
    known = []
    for key, checked in sorted(checks.items(), key=_worst_first):
        evidence = checked.evidence
        file = key.removeprefix(staged.root)
        seconds = seconds_of(evidence)
        rows.append({"evidence": evidence, "file": file, "seconds": seconds})
        findings += [(evidence, finding) for finding in evidence.findings]
        if not checked.results and [*results_names(evidence)]:
            unread.append(file)
        tests += [(evidence.target, result) for result in checked.results]
        for check in checked.checks:
            if check.outcome == "known":
                known.append((evidence.target, check))
    severities = list(Severity)
    findings.sort(key=lambda item: severities.index(item[1].severity))

    def tests_with(*verdicts: TestVerdict) -> list[tuple[str, TestResult]]:
        return [(target, test) for target, test in tests if test.verdict in verdicts]

    files = (*wheel_set.files, WHEELS_JSON, SHA256SUMS, *written)
    return render(
        "report.html",
        {
            "title": (
                f"JAX {wheel_set.jax_version} for ROCm {wheel_set.rocm_version}:"
                " content and tests"
            ),
            "staged": staged,
            "set": wheel_set,
            "tiers": sorted(tiers.items(), key=lambda item: natural_key(item[0])),
            "policy": policy,
            "rows": rows,
            "findings": findings,
            "failed": tests_with(TestVerdict.FAILED, TestVerdict.CRASHED),
            "flaky": tests_with(TestVerdict.FLAKY),
            "unproven": tests_with(TestVerdict.ENVIRONMENT, TestVerdict.NOT_RUN),
            "known": known,
            "unread": unread,
            "most": _MOST,
            "shortened": _shortened,
            "summary": summary,
            "wheels": [
                {
                    "filename": wheel.filename,
                    "size": wheel.size,
                    "sha256": wheel.sha256,
                    "href": f"../../packages/{wheel.name}/{wheel.filename}",
                    "targets": summary.wheels[wheel.filename],
                }
                for wheel in wheel_set.wheels
            ],
            # Debug files come last.
            "files": sorted(files, key=lambda name: ("/" in name, name)),
        },
    )


def _worst_first(item: tuple[str, EvidenceChecks]) -> tuple[int, str, Any]:
    """Return the sort key of evidence in a report."""
    evidence = item[1].evidence
    place = _ORDER.index(evidence.outcome)
    return place, evidence.gate, natural_key(evidence.target)


def _shortened(
    tests: Sequence[tuple[str, TestResult]],
) -> Iterator[tuple[str, TestResult]]:
    """Yield the first tests with as much of their messages as fits into a report."""
    tests = tests[:_MOST]
    longest = min(_LONGEST_MESSAGE, _MOST_MESSAGES // max(len(tests), 1))
    for target, test in tests:
        if len(test.message) > longest:
            test = replace(test, message=f"{test.message[:longest]}…")
        yield target, test


def seconds_of(evidence: Evidence) -> float:
    """Return the duration of a gate; 0 for invalid times."""
    started = time_of(evidence.started)
    ended = time_of(evidence.ended)
    return (ended - started).total_seconds() if started and ended else 0.0
