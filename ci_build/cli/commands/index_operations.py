"""Commands that change a released index."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
import cloup

from ci_build.cli.common import State, host_runner, open_bucket, print_json
from ci_build.cli.options.environment import ledger_request
from ci_build.cli.options.shared_options import (
    DAYS,
    ENTRY,
    Function,
    bucket_option,
    dry_run_option,
    index_channel_option,
    json_option,
    ledger_key_option,
    option,
)
from ci_build.release.index_authority import find_authority
from promotion.index import operations
from promotion.index import retention as index_retention
from promotion.index.ledger_state import EntryKind
from promotion.index.operations import OperationResult
from promotion.index.upkeep import record_upkeep
from promotion.storage.object_keys import ReleasedIndex


def _change_options(function: Function) -> Function:
    """Add the options of commands that change a ledger."""
    function = json_option(dry_run_option(bucket_option(function)))
    return index_channel_option(ledger_key_option(function))


@cloup.command()
@click.argument("index")
@click.argument("to", metavar="[ENTRY]", type=ENTRY, required=False)
@option("--reason TEXT", "Reason to record in the ledger.", required=True)
@_change_options
@click.pass_obj
def rollback(
    state: State,
    /,
    index: str,
    to: int | None,
    reason: str,
    bucket: str,
    *,
    dry_run: bool,
    as_json: bool,
    **ledger: Any,  # noqa: ANN401 - options of the ledger
) -> None:
    """Return INDEX to the state after ENTRY of its ledger, or to the previous state.

    No file is removed.
    """
    reporter = state.reporter()
    opened = open_bucket(bucket, reporter, dry_run=dry_run)
    released = ReleasedIndex(index=index)
    request = ledger_request(**ledger)
    authority = find_authority(opened, released, request, host_runner(reporter))
    done = operations.rollback(
        opened, released, to=to, reason=reason, authority=authority
    )
    if as_json:
        print_json(_result(index, done))
    else:
        _report(done, reporter.line)


def _marking(name: str, kinds: tuple[EntryKind, EntryKind], text: str) -> click.Command:
    """Return a command that marks sets, or removes a mark.

    Args:
        kinds: kind of the ledger entry that marks sets, and of the one that undoes it.
    """

    @cloup.command(name, help=text)
    @click.argument("sets", nargs=-1, required=True, metavar="INDEX/SET…")
    @option("--undo", f"Undo `{name}`.")
    @option(
        "--reason TEXT",
        "Reason to record in the ledger; required without --undo.",
        default="",
    )
    @_change_options
    @click.pass_obj
    def command(
        state: State,
        /,
        sets: tuple[str, ...],
        reason: str,
        bucket: str,
        *,
        undo: bool,
        dry_run: bool,
        as_json: bool,
        **ledger: Any,  # noqa: ANN401 - options of the ledger
    ) -> None:
        if not (undo or reason):
            raise click.UsageError("Missing option '--reason'.")
        reporter = state.reporter()
        request = ledger_request(**ledger)
        opened = open_bucket(bucket, reporter, dry_run=dry_run)
        results = []
        for index, digests in _by_index(sets).items():
            released = ReleasedIndex(index=index)
            authority = find_authority(opened, released, request, host_runner(reporter))
            done = operations.mark(
                opened,
                released,
                kinds[undo],
                digests,
                reason=reason,
                authority=authority,
            )
            results.append(_result(index, done))
            if not as_json:
                _report(done, reporter.line)
        if as_json:
            print_json(results)

    return command


def _by_index(sets: Sequence[str]) -> Mapping[str, list[str]]:
    """Return index -> digests or numbers of the sets INDEX/DIGEST and INDEX/NUMBER."""
    found: dict[str, list[str]] = {}
    for name in sets:
        index, slash, digest = name.rpartition("/")
        if not slash:
            raise click.UsageError(
                f"{name!r} is not a set: write INDEX/DIGEST or INDEX/NUMBER."
            )
        found.setdefault(index, []).append(digest)
    return found


yank = _marking(
    "yank",
    (EntryKind.YANK, EntryKind.UNYANK),
    "Hide sets from users who do not pin them (PEP 592).",
)
quarantine = _marking(
    "quarantine",
    (EntryKind.QUARANTINE, EntryKind.FREE),
    "Withdraw sets until --undo; a rollback does not restore them.",
)
pin = _marking("pin", (EntryKind.PIN, EntryKind.UNPIN), "Protect sets from retention.")


def _result(index: str, done: OperationResult) -> Mapping[str, object]:
    """Return a change of an index as JSON values.

    `ledger_entry` is null if there was nothing to do.
    """
    return {
        "index": index,
        "ledger_entry": done.entry.number if done.entry else None,
        "now_offered": done.appeared,
        "no_longer_offered": done.vanished,
        "withheld": done.withheld,
        "pages": done.pages,
    }


def _report(done: OperationResult, line: Callable[[str], None]) -> None:
    for text, numbers in (
        ("now offered", done.appeared),
        ("no longer offered", done.vanished),
    ):
        if numbers:
            line(f"  {text}: the sets of entries {', '.join(map(str, numbers))}")
    for number, reason in done.withheld.items():
        line(f"  not restored: the set of entry {number} is {reason}")
    if done.entry is None:
        line("nothing to do: the index is already in this state")
        return
    line(
        f"ledger entry {done.entry.number}: {done.entry.kind}; {len(done.pages)} files written"
    )


@cloup.command()
@click.argument("index")
@option(
    "--days DAYS",
    "Remove sets promoted more than DAYS days ago from the pages.",
    type=DAYS,
    required=True,
)
@option(
    "--keep-newest N",
    "Always keep the N newest sets.",
    type=ENTRY,
    default=3,
)
@option("--apply", "Apply the plan. Without it, only print the plan.", name="really")
@json_option
@index_channel_option
@ledger_key_option
@bucket_option
@click.pass_obj
def retention(
    state: State,
    /,
    index: str,
    days: int,
    keep_newest: int,
    bucket: str,
    *,
    really: bool,
    as_json: bool,
    **ledger: Any,  # noqa: ANN401 - options of the ledger
) -> None:
    """Remove old sets of INDEX from its pages, and later their files from the bucket."""
    reporter = state.reporter()
    opened = open_bucket(bucket, reporter)
    released = ReleasedIndex(index=index)
    rule = index_retention.RetentionRule(days=days, keep_newest=keep_newest)
    request = ledger_request(**ledger)
    authority = find_authority(opened, released, request, host_runner(reporter))
    authority.check_signer(operations.utc_now())
    if really:
        plan = index_retention.apply(opened, released, rule, authority=authority)
        record_upkeep(opened, released, "retention")
    else:
        plan = index_retention.plan(opened, released, rule, authority=authority)
    if as_json:
        print_json(plan)
        return
    for number, why in plan.kept.items():
        reporter.line(f"  the set of entry {number} stays: {why}")
    for word, numbers in (
        ("leaves the pages", plan.retire),
        ("is removed", plan.sweep),
    ):
        for number in numbers:
            reporter.line(f"  the set of entry {number} {word}")
    for key in plan.remove:
        reporter.line(f"  remove {key}")
    if not (plan.retire or plan.sweep):
        reporter.line("nothing to do")
    elif not really:
        reporter.line("nothing was changed; --apply applies the plan")
