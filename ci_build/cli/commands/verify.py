"""The command `ci_build index verify`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import cloup

from ci_build.cli.common import State, host_runner, open_bucket, print_json
from ci_build.cli.options.environment import ledger_request
from ci_build.cli.options.shared_options import (
    bucket_option,
    dry_run_option,
    index_channel_option,
    json_option,
    ledger_key_option,
    option,
    refuse_typed,
    trust_config_option,
)
from ci_build.release.index_authority import (
    committed_policies,
    find_authority,
    heads_of,
    history_problem,
    read_authority,
    record_head,
    recorded_entry,
)
from core.errors import BucketError
from core.report import Reporter
from promotion.evidence.attestation_verification import lazy_verifier
from promotion.index import audit
from promotion.index.audit import IndexRepair
from promotion.index.audit import repair as repair_index
from promotion.index.ledger import Head, LedgerEntry, RecordedEntry
from promotion.index.publish import read_head
from promotion.index.upkeep import record_upkeep
from promotion.policy.promotion_policy import load_policy
from promotion.policy.recorded_promotion import promotion_problems
from promotion.storage.object_keys import ReleasedIndex

_OF_REPAIR = ("dry_run", "ledger_key")
"""Options that need --repair."""


def _recorded_entry(
    _context: click.Context, _option: click.Parameter, value: str | None
) -> RecordedEntry | None:
    try:
        return None if value is None else RecordedEntry.parse(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@cloup.command()
@click.argument("index")
@option(
    "--read",
    "Download and hash every file, even where the store reports a trusted checksum.",
)
@option(
    "--since SEQUENCE:HASH",
    (
        "Entry that an earlier verification printed: a ledger that was cut or rewritten"
        " since then is refused."
    ),
    type=click.UNPROCESSED,
    callback=_recorded_entry,
)
@option(
    "--repair",
    (
        "First restore pages, and remove the files that killed promotions and sweeps left,"
        " and foreign ones among the index's own."
    ),
)
@trust_config_option
@index_channel_option
@ledger_key_option
@bucket_option
@dry_run_option
@json_option
@click.pass_obj
def verify(
    state: State,
    /,
    index: str,
    since: RecordedEntry | None,
    trust_config: Path | None,
    bucket: str,
    channel: str | None,
    ledger_key: Path | None,
    *,
    read: bool,
    repair: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Verify the ledger of INDEX, compare its contents with it, and report differences."""
    if not repair:
        refuse_typed(_OF_REPAIR, "without --repair", "Give --repair, or omit this.")
    reporter = state.reporter()
    opened = open_bucket(bucket, reporter, dry_run=dry_run)
    released = ReleasedIndex(index=index)
    request = ledger_request(ledger_key, channel, bucket=bucket)
    runner = host_runner(reporter)
    authority = read_authority(opened, released, channel)
    heads = heads_of(request, authority)
    if since is None and heads is not None:
        since = recorded_entry(heads, index)
    done: IndexRepair | None = None
    if repair:
        reporter.step(f"repair {index}")
        signer = find_authority(opened, released, request, runner)
        done = repair_index(
            opened,
            released,
            authority=signer,
            since=since,
        )
        if not as_json:
            _show(done, reporter)
    reporter.step(f"verify {index}")
    policy = load_policy(index, channel=authority.channel)
    committed = None
    if authority.keys is not None:
        committed = committed_policies(runner)
        if committed is None:
            reporter.line("policies of promotions are not compared: no whole history")

    def judge(entry: LedgerEntry) -> Iterator[str]:
        yield from promotion_problems(opened, released, entry, policy)
        if committed is not None:
            yield from history_problem(entry, committed)

    found = audit.verify(
        opened,
        released,
        reporter,
        read=read,
        verify_attestations=lazy_verifier(trust_config),
        authority=authority,
        since=since,
        entry_problems=judge,
    )
    problems = [*found]
    head = read_head(opened, released, authority)[0] if not problems else Head()
    last = RecordedEntry(number=head.number, sha256=head.sha256)
    if as_json:
        repaired = {"repaired": done} if done else {}
        print_json(
            {
                "index": index,
                "head": "" if problems else str(last),
                "problems": problems,
                **repaired,
            }
        )
    if problems:
        raise BucketError("\n  ".join((f"{index} differs from its ledger:", *problems)))
    if heads is not None:
        record_head(heads, opened, released, authority)
    if not dry_run:
        record_upkeep(opened, released, "verify")
    if not as_json:
        keys = (
            "no signature"
            if authority.keys is None
            else f"signatures of {', '.join(authority.keys)}"
        )
        reporter.line(
            f"{index} matches its ledger; channel {authority.channel} requires {keys}"
        )
        reporter.line(f"newest entry, to record for `index verify --since`: {last}")


def _show(done: IndexRepair, reporter: Reporter) -> None:
    for word, keys in (("restored", done.written), ("removed", done.removed)):
        for key in keys:
            reporter.line(f"  {word} {key}")
    for key, reason in done.kept.items():
        reporter.line(f"  kept {key}: {reason}")
    if not (done.written or done.removed or done.kept):
        reporter.line("nothing to repair")
