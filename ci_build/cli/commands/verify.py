"""The command `ci_build verify`."""

from __future__ import annotations

import functools
from datetime import timedelta
from pathlib import Path

import click
import cloup
from click.core import ParameterSource

from ci_build.cli.common import State, host_runner, open_bucket, print_json
from ci_build.cli.options.environment import ledger_request
from ci_build.cli.options.release import (
    Duration,
    bucket_option,
    dry_run_option,
    has_folder,
    index_channel_option,
    ledger_key_option,
    trust_config_option,
)
from ci_build.release.authority import find_authority, read_authority
from core.errors import BucketError, RequestError
from core.report import Reporter
from promotion.evidence.attestation_verification import lazy_verifier
from promotion.index import audit
from promotion.index.checkpoint_audit import CheckpointAudit
from promotion.index.repair import GRACE_HOURS, IndexRepair
from promotion.index.repair import repair as repair_index
from promotion.policy.policy import load_policy
from promotion.policy.recorded_tiers import tier_problems
from promotion.storage.keys import ReleasedIndex

_OF_REPAIR = ("remove_foreign", "grace_hours", "dry_run", "ledger_key")
"""Options that need --repair."""


@cloup.command()
@click.argument("index")
@click.option(
    "--read", is_flag=True, help="Download and hash every file, even where the store reports a trusted checksum."
)
@click.option(
    "--since",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Checkpoint that you kept: a ledger that was cut or rewritten since then is refused.",
)
@click.option(
    "--checkpoint",
    metavar="FILE",
    type=click.Path(path_type=Path),
    callback=has_folder,
    help="Keep the checkpoint of a ledger without problems in FILE. An existing FILE counts as --since.",
)
@click.option(
    "--repair",
    is_flag=True,
    help="First restore pages, complete sweeps, and remove the files that killed or refused promotions left.",
)
@click.option("--remove-foreign", is_flag=True, help="With --repair: remove also objects that no promotion copied.")
@click.option(
    "--grace-hours",
    type=Duration(0),
    default=GRACE_HOURS,
    show_default=True,
    metavar="HOURS",
    help="With --repair: keep files that are younger, which a promotion may need; 0 if none is running.",
)
@trust_config_option
@index_channel_option
@ledger_key_option
@bucket_option
@dry_run_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_obj
def verify(
    state: State, /, index: str, since: Path | None, checkpoint: Path | None, trust_config: Path | None, bucket: str,
    channel: str | None, ledger_key: Path | None, grace_hours: float,
    *, read: bool, repair: bool, remove_foreign: bool, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Verify the ledger of INDEX, compare files, tiers, attestations and pages with it, and report differences."""
    _refuse_unused(repair=repair)
    if dry_run and checkpoint is not None:
        raise RequestError("--checkpoint and --dry-run exclude each other.", hint="Omit one of them.")
    reporter = state.reporter()
    opened, released = open_bucket(bucket, reporter, dry_run=dry_run), ReleasedIndex(index=index)
    done: IndexRepair | None = None
    if repair:
        reporter.step(f"repair {index}")
        authority = find_authority(opened, released, ledger_request(ledger_key, channel), host_runner(reporter))
        grace = timedelta(hours=grace_hours)
        kept = since or (checkpoint if checkpoint and checkpoint.exists() else None)
        done = repair_index(
            opened, released, grace=grace, foreign=remove_foreign, authority=authority, since=kept
        )  # fmt: skip
        if not as_json:
            _show(done, reporter)
    reporter.step(f"verify {index}")
    authority = read_authority(opened, released, channel)
    checkpoints = CheckpointAudit(opened, released, authority, since=since, keep=checkpoint)
    policy = load_policy(index, channel=authority.channel)
    found = audit.verify(
        opened, released, reporter, read=read, verify_attestations=lazy_verifier(trust_config), authority=authority,
        checkpoints=checkpoints, tier_problems=functools.partial(tier_problems, opened, released, policy=policy),
    )  # fmt: skip
    problems = [*found]
    if as_json:
        print_json({"index": index, "problems": problems, **({"repaired": done} if done else {})})
    if problems:
        raise BucketError("\n  ".join((f"{index} differs from its ledger:", *problems)))
    if since is not None:
        reporter.line(f"{index} contains every entry that {since} covers")
    if checkpoint is not None:
        reporter.line(checkpoints.save())
    if not as_json:
        keys = "no signature" if authority.keys is None else f"signatures of {', '.join(authority.keys)}"
        reporter.line(f"{index} matches its ledger; channel {authority.channel} requires {keys}")


def _refuse_unused(*, repair: bool) -> None:
    """Refuse options that have no effect without --repair."""
    context = click.get_current_context()
    given = [name for name in _OF_REPAIR if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if given and not repair:
        names = ", ".join("--" + name.replace("_", "-") for name in given)
        raise RequestError(f"{names} has no effect without --repair.", hint="Give --repair, or omit this.")


def _show(done: IndexRepair, reporter: Reporter) -> None:
    for word, keys in (("restored", done.written), ("removed", done.removed)):
        for key in keys:
            reporter.line(f"  {word} {key}")
    for key, reason in done.kept.items():
        reporter.line(f"  kept {key}: {reason}")
    if not (done.written or done.removed or done.kept):
        reporter.line("nothing to repair")
