"""Gates on the command line: the set, the gates, the signing key, and the output of evidence."""

from __future__ import annotations

import dataclasses
import re
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ci_build.release.index_authority import signer_of
from ci_build.release.release_request import STRUCTURE, SigningKey
from ci_build.rocm.tree import read_tree
from ci_build.wheelset.expected import expected_of_staged
from core.errors import RequestError
from core.model import WHEELS_JSON, Evidence, Outcome, Severity
from core.process import Runner
from core.report import Reporter
from core.targets import requested
from core.tasks import Tasks
from promotion import stage as promotion_stage
from promotion import staged_sets
from promotion.evidence.signing import Signer, new_key
from promotion.gates.common import gate_runs as runs
from promotion.gates.common.gate_report import report_lines
from promotion.gates.common.gate_rocm import RocmTree
from promotion.gates.compile import view
from promotion.gates.gate_table import GATES, GateInputs, GateOptions
from promotion.index.ledger import channel_of
from promotion.index.publish import read_head
from promotion.policy.promotion_policy import LOCAL, Policy, load_policy
from promotion.set_report import seconds_of
from promotion.storage.bucket import Bucket
from promotion.storage.object_keys import ReleasedIndex, StagedSet, is_digest

_COUNTS = ("passed", "known", "failed", "skipped")


def read_rocm(rocm: Path, reporter: Reporter) -> RocmTree:
    """Read a ROCm tree, which may lack a version."""
    manifest, notes = read_tree(rocm, unknown="of unknown version", progress=reporter)
    for note in notes:
        reporter.warning(note)
    return RocmTree(folder=rocm.absolute(), manifest=manifest)


def find_staged(text: str, bucket: Bucket) -> StagedSet:
    """Return a staged set by INDEX and its digest, first digits or ledger entry.

    A whole digest is not looked up.

    Raises:
        RequestError: the text is not the name of a set, or no set or several sets have
            this name.
    """
    index, _, digest = text.rpartition("/")
    if index and is_digest(digest):
        return StagedSet(index=index, digest=digest)
    return staged_sets.find_set(bucket, text)


def find_set(text: str, bucket: Bucket, reporter: Reporter) -> StagedSet:
    """Return a staged set by its name, see `find_staged`, or by its folder.

    A folder is staged when necessary.

    Raises:
        RequestError: the text names neither a staged set nor the folder of a set.
    """
    check_set(text)
    folder = Path(text)
    if not folder.is_dir():
        return find_staged(text, bucket)
    return promotion_stage.find_staged(bucket, folder) or promotion_stage.stage(
        bucket, folder, progress=reporter
    )


def carry(text: str, source: Bucket, target: Bucket, reporter: Reporter) -> StagedSet:
    """Copy a staged or released set and its evidence from another bucket, and return it.

    Args:
        text: see `find_staged`; of a set that is no longer staged, the whole digest.

    Raises:
        RequestError: the text names no set of the source.
    """
    staged = find_staged(text, source)
    with (
        reporter.group("copy the set"),
        tempfile.TemporaryDirectory(prefix="set-") as folder,
    ):
        promotion_stage.carry(source, target, staged, Path(folder), reporter)
    return staged


def check_set(text: str) -> None:
    """Raise RequestError if a text is neither the folder nor the possible name of a set."""
    if not Path(text).is_dir():
        if re.fullmatch(r"\w[\w.-]*/\w+", text):
            return
        raise RequestError(
            f"{text!r} is neither a folder nor the name of a staged set.",
            hint="Give a folder with wheels.json, or INDEX/DIGEST of `ci_build status`.",
        )
    if not Path(text, WHEELS_JSON).is_file():
        raise RequestError(
            f"{text} has no {WHEELS_JSON}.",
            hint="Build a set with `ci_build dist_wheels` or `ci_build set adopt`.",
        )


def find_signer(key: SigningKey, reporter: Reporter) -> Signer:
    """Return the signer of evidence; the user's own key is created on first use.

    Raises:
        RequestError: the key is invalid.
    """
    if _is_absent(key) and key.file:
        with suppress(FileExistsError):
            new_key(key.file)
            reporter.line(f"  created a key that signs evidence: {key.file}")
    return signer_of(key)


def check_key(key: SigningKey) -> None:
    """Raise RequestError if the key that signs evidence is invalid; create none."""
    if not _is_absent(key):
        signer_of(key)


def _is_absent(key: SigningKey) -> bool:
    return key.own and key.file is not None and not key.file.exists()


def policy_of(bucket: Bucket, index: str, channel: str) -> Policy:
    """Return the policy of the channel to which an index belongs.

    Of `channel` if the index does not exist yet.
    """
    head, entries = read_head(bucket, ReleasedIndex(index=index))
    return load_policy(index, channel=channel_of(head, entries) or channel)


def run_gates(
    name: str,
    staged: StagedSet,
    bucket: Bucket,
    gate_options: GateOptions,
    reporter: Reporter,
    runner: Runner,
    signer: Signer,
    channel: str = LOCAL,
    *,
    redo: bool = False,
    cache: Path | None = None,
    tasks: Tasks | None = None,
) -> tuple[Evidence, ...]:
    """Run a gate, or all gates for STRUCTURE; failures do not raise, see `raise_for_failures`.

    Args:
        channel: channel whose policy limits the age of reused evidence, and names the
            corpus and the installers if the options do not; the channel of an existing
            index counts first.
        redo: repeat gates that passed before.
        cache: the user's cache, which keeps the environments of installers; None
            installs them in every run.
        tasks: machines that compile programs. None means this machine.
    """
    policy = policy_of(bucket, staged.index, channel)
    gate_options = with_policy(gate_options, policy)
    rows = [*GATES.values()] if name == STRUCTURE else [GATES[name]]
    inputs = GateInputs(
        expected=expected_of_staged(bucket, staged),
        rocm=read_rocm(gate_options.rocm, reporter) if gate_options.rocm else None,
        tasks=tasks,
        cache=cache,
    )
    started = sorted(rows, key=lambda row: row.start)
    targets = None
    if gate_options.targets is not None:
        targets = [str(target) for target in requested(gate_options.targets)]
    days = policy.max_age_days
    wheel_set = promotion_stage.read_staged(bucket, staged)
    exceptions = [
        entry
        for entry in policy.accepted_exceptions
        if entry.is_for(wheel_set) and not entry.state(datetime.now(UTC))
    ]
    evidences = runs.run_gates(
        bucket,
        staged,
        [row.make(gate_options, inputs) for row in started],
        runner,
        reporter,
        targets=targets,
        redo=redo,
        max_age=None if days is None else timedelta(days=days),
        signer=signer,
        exceptions=exceptions,
    )
    order = [row.name for row in rows]
    return tuple(sorted(evidences, key=lambda evidence: order.index(evidence.gate)))


def with_policy(gate_options: GateOptions, policy: Policy) -> GateOptions:
    """Return options in which the policy's required settings replace those that were not given."""
    required: dict[str, Any] = {}
    for row in GATES.values():
        for setting in row.policy_settings:
            rule = policy.gates.get(row.name)
            if rule and not getattr(gate_options, setting):
                required[setting] = rule.settings.get(setting, "")
    return dataclasses.replace(gate_options, **required)


def show_evidence(evidences: Sequence[Evidence], reporter: Reporter) -> None:
    """Print a table of evidence, and the warnings.

    Errors are part of the final message, and precede the warnings there.
    """
    rows: list[tuple[str, ...]] = []
    for evidence in evidences:
        severities = [finding.severity for finding in evidence.findings]
        warnings = severities.count(Severity.WARNING)
        counts = [str(evidence.counts[word]) for word in _COUNTS]
        about = (evidence.gate, evidence.target, evidence.outcome.value)
        took = f"{seconds_of(evidence):.0f} s"
        rows.append((*about, *counts, str(warnings), took))
    columns = ("gate", "target", "result", *_COUNTS, "warnings", "took")
    reporter.table(columns, rows, numeric=range(3, len(columns)))
    compiled = [evidence for evidence in evidences if evidence.gate == "compile"]
    if compiled:
        reporter.table(*view.results(compiled))
        for line in view.failures(compiled):
            reporter.line(line)
    if not any(one.outcome in (Outcome.FAILED, Outcome.ERROR) for one in evidences):
        for line in report_lines(evidences, Severity.WARNING):
            reporter.warning(line)
