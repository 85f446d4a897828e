"""Gates on the command line: the set, the gates, the signing key, and the output of evidence."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from ci_build.release.index_authority import signer_of
from ci_build.release.release_request import CORPORA, GATES, STRUCTURE, SigningKey
from ci_build.rocm.tree import read_tree
from ci_build.wheelset.expected import this_program
from core.errors import RequestError
from core.model import WHEELS_JSON, Evidence, Finding, Severity
from core.process import Runner
from core.report import Reporter
from core.targets import requested
from core.tasks import Tasks
from promotion import stage as promotion_stage
from promotion import staged_sets
from promotion.corpus.program_catalog import load_corpus
from promotion.evidence.signing import Signer, new_key
from promotion.gates import inspection_gate as inspection
from promotion.gates.abi import abi_gate
from promotion.gates.common import gate_runs as runs
from promotion.gates.common.gate_context import Gate
from promotion.gates.common.gate_rocm import RocmTree
from promotion.gates.compile import compile_gate, view
from promotion.gates.coverage import coverage_gate
from promotion.gates.install import install_gate
from promotion.gates.install.installer_table import NEWEST
from promotion.gates.load import load_gate
from promotion.index.ledger import channel_of
from promotion.index.publish import read_head
from promotion.policy.promotion_policy import LOCAL, Policy, load_policy
from promotion.storage.bucket import Bucket
from promotion.storage.object_keys import ReleasedIndex, StagedSet, is_digest

_MOST_SHOWN = 3
"""Number of warnings of one kind that are printed."""
_USED_BY = {
    "targets": ("coverage", "compile"),
    "rocm": ("abi", "load", "compile"),
    "corpus": ("compile",),
    "program": ("compile",),
    "jobs": ("compile",),
    "installers": ("install",),
    "update_golden": ("load",),
}
"""Option -> the gates that use it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GateOptions:
    """Options of gates.

    Attributes:
        targets: gfx targets or families, separated by commas. None means the set's
            targets.
        rocm: root of a real ROCm tree. None means stub libraries.
        corpus: corpus of the compile gate: "small" or "full". Empty means small.
        program: programs or groups to compile instead of the corpus. Their evidence is
            not stored.
        jobs: concurrent compilers. None means as many as cores and memory allow.
        installers: installers of the install gate: newest or all; empty means newest.
        update_golden: write the registrations of the wheels to the golden lists.
        redo: repeat gates that passed before.
        tasks: machines that compile programs. None means this machine.
        cache: the user's cache, which keeps the environments of installers; None
            installs them in every run.
    """

    targets: str | None = None
    rocm: Path | None = None
    corpus: str = ""
    program: tuple[str, ...] = ()
    jobs: int | None = None
    installers: str = ""
    update_golden: bool = False
    redo: bool = False
    cache: Path | None = None
    tasks: Tasks | None = None


def check_gate_options(name: str, gate_options: GateOptions) -> None:
    """Raise RequestError for options that a gate does not use."""
    unused = [
        "--" + option.replace("_", "-")
        for option, users in _USED_BY.items()
        if getattr(gate_options, option) and name not in (*users, STRUCTURE)
    ]
    if unused:
        raise RequestError(
            f"The gate {name} does not use {', '.join(unused)}.",
            hint="Run `ci_build gate --help`.",
        )


def make_gate(
    name: str, gate_options: GateOptions, tree: RocmTree | None = None
) -> Gate:
    """Return a gate by name.

    Args:
        tree: the ROCm tree of `gate_options.rocm`.
    """
    match name:
        case "inspection":
            return inspection.make_gate(this_program())
        case "abi":
            return abi_gate.make_gate(tree.manifest if tree else None)
        case "load":
            return load_gate.make_gate(
                rocm=tree, update_golden=gate_options.update_golden
            )
        case "compile":
            how = compile_gate.CompileOptions(
                corpus=gate_options.corpus or CORPORA[0],
                programs=gate_options.program,
                jobs=gate_options.jobs,
                rocm=tree,
                tasks=gate_options.tasks,
            )
            return compile_gate.make_gate(load_corpus(), how)
        case "coverage":
            return coverage_gate.GATE
        case "install":
            return install_gate.make_gate(
                installers=gate_options.installers or NEWEST, cache=gate_options.cache
            )
        case other:
            raise AssertionError(f"GATES has an unknown gate: {other!r}")


def read_rocm(rocm: Path, reporter: Reporter) -> RocmTree:
    """Read a ROCm tree, which may lack a version."""
    manifest, notes = read_tree(rocm, unknown="of unknown version", progress=reporter)
    for note in notes:
        reporter.warning(note)
    return RocmTree(folder=rocm.absolute(), manifest=manifest)


def parse_staged(text: str) -> StagedSet:
    """Parse `<index>/<digest>`, as `ci_build stage` prints it."""
    index, slash, digest = text.rpartition("/")
    if not slash:
        raise RequestError(
            f"{text!r} is not a staged set.",
            hint="Give INDEX/DIGEST as `ci_build stage` prints it.",
        )
    return StagedSet(index=index, digest=digest)


def find_staged(text: str, bucket: Bucket) -> StagedSet:
    """Return a staged set by INDEX and its digest, first digits or ledger entry.

    Only a digest that is not whole is looked up.

    Raises:
        RequestError: the text is not the name of a set, or no set or several sets have
            this name.
    """
    _, slash, digest = text.rpartition("/")
    return (
        parse_staged(text)
        if not slash or is_digest(digest)
        else staged_sets.find_set(bucket, text)
    )


def find_set(text: str, bucket: Bucket, reporter: Reporter) -> StagedSet:
    """Return a staged set by its name, see `find_staged`, or by its folder.

    A folder is staged when necessary.

    Raises:
        RequestError: the text names neither a staged set nor the folder of a set.
    """
    folder = Path(text)
    if not folder.is_dir():
        return find_staged(text, bucket)
    check_set_folder(folder)
    return promotion_stage.find_staged(bucket, folder) or promotion_stage.stage(
        bucket, folder, progress=reporter
    )


def check_set_folder(folder: Path) -> None:
    """Raise RequestError if a folder has no wheels.json."""
    if not (folder / WHEELS_JSON).is_file():
        raise RequestError(
            f"{folder} has no {WHEELS_JSON}.",
            hint="Build a set with `ci_build dist_wheels` or `ci_build adopt`.",
        )


def find_signer(key: SigningKey, reporter: Reporter) -> Signer:
    """Return the signer of evidence; the user's own key is created on first use.

    Raises:
        RequestError: the key is invalid.
    """
    if key.own and key.file and not key.file.exists():
        with suppress(FileExistsError):
            new_key(key.file)
            reporter.line(f"  created a key that signs evidence: {key.file}")
    return signer_of(key)


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
) -> tuple[Evidence, ...]:
    """Run a gate, or all gates for STRUCTURE; failures do not raise, see `raise_for_failures`.

    Args:
        channel: channel whose policy limits the age of reused evidence, and names the
            corpus and the installers if the options do not; the channel of an existing
            index counts first.
    """
    policy = policy_of(bucket, staged.index, channel)
    gate_options = with_policy(gate_options, policy)
    days = policy.max_age_days
    tree = read_rocm(gate_options.rocm, reporter) if gate_options.rocm else None
    return runs.run_gates(
        bucket,
        staged,
        [
            make_gate(gate, gate_options, tree)
            for gate in (GATES if name == STRUCTURE else (name,))
        ],
        runner,
        reporter,
        targets=(
            None
            if gate_options.targets is None
            else [str(target) for target in requested(gate_options.targets)]
        ),
        redo=gate_options.redo,
        max_age=None if days is None else timedelta(days=days),
        signer=signer,
    )


def with_policy(gate_options: GateOptions, policy: Policy) -> GateOptions:
    """Return options in which the policy's required settings replace those that were not given."""

    def setting(gate: str, name: str) -> str:
        return policy.gates[gate].settings.get(name, "") if gate in policy.gates else ""

    return dataclasses.replace(
        gate_options,
        corpus=gate_options.corpus or setting("compile", "corpus"),
        installers=gate_options.installers or setting("install", "installers"),
    )


def show_evidence(evidences: Sequence[Evidence], reporter: Reporter) -> None:
    """Print a table of evidence and some warnings of each kind.

    Errors are part of the final message.
    """
    rows: list[tuple[str, ...]] = []
    kinds: dict[tuple[str, str], list[Finding]] = {}
    for evidence in evidences:
        warnings = [
            finding
            for finding in evidence.findings
            if finding.severity is Severity.WARNING
        ]
        for finding in warnings:
            kinds.setdefault((evidence.gate, finding.code), []).append(finding)
        counts = (
            str(evidence.counts[word])
            for word in ("passed", "known", "failed", "skipped")
        )
        took = datetime.fromisoformat(evidence.ended) - datetime.fromisoformat(
            evidence.started
        )
        about = (evidence.gate, evidence.target, evidence.outcome.value)
        rows.append((*about, *counts, str(len(warnings)), f"{took.seconds} s"))
    columns = (
        "gate",
        "target",
        "result",
        "passed",
        "known",
        "failed",
        "skipped",
        "warnings",
        "took",
    )
    reporter.table(columns, rows, numeric=(3, 4, 5, 6, 7, 8))
    compiled = [evidence for evidence in evidences if evidence.gate == "compile"]
    if compiled:
        reporter.table(*view.results(compiled))
        for line in view.failures(compiled):
            reporter.line(line)
    for (gate, _), pieces in kinds.items():
        shown = [*dict.fromkeys(pieces)]
        if len(shown) > _MOST_SHOWN:
            text = f"{shown[0].message} There are {len(shown) - 1} more of this kind."
            shown = [dataclasses.replace(shown[0], message=text)]
        for finding in shown:
            reporter.finding(finding, where=f"gate {gate}")
