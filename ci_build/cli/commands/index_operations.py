"""Commands that change, list and verify a released index."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
import cloup

from ci_build.cli.common import State, open_bucket, print_json
from ci_build.cli.options.environment import actor
from ci_build.cli.options.release import bucket_option, dry_run_option, trust_config_option
from core.errors import BucketError, RequestError

if TYPE_CHECKING:
    from promotion.index.ledger_state import EntryKind
    from promotion.index.operations import OperationResult


_json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


@cloup.command()
@click.argument("index")
@click.option(
    "--to", type=click.IntRange(0), metavar="N", help="Ledger entry to return to.  [default: the previous state]"
)
@click.option("--reason", required=True, help="Reason, for the ledger.")
@bucket_option
@dry_run_option
@_json_option
@click.pass_obj
def rollback(
    state: State, /, index: str, to: int | None, reason: str, bucket: str, *, dry_run: bool, as_json: bool
) -> None:
    """Return INDEX to an earlier state; no file is removed."""
    # Slow to import, as below.
    from promotion.index.operations import rollback as go
    from promotion.storage.keys import ReleasedIndex

    reporter = state.reporter()
    opened = open_bucket(bucket, reporter, dry_run=dry_run)
    done = go(opened, ReleasedIndex(index=index), to=to, reason=reason, actor=actor())
    if as_json:
        print_json(_result(index, done))
        return
    _report(done, reporter.line)


def _marking(name: str, kind: str, text: str, *, reason: bool) -> click.Command:
    """Return a command that marks sets, or removes a mark."""

    @cloup.command(name, help=text)
    @click.argument("sets", nargs=-1, required=True, metavar="INDEX/SET…")
    @click.option("--reason", required=reason, default="", help="Reason, for the ledger.")
    @bucket_option
    @dry_run_option
    @_json_option
    @click.pass_obj
    def command(
        state: State, /, sets: tuple[str, ...], reason: str, bucket: str, *, dry_run: bool, as_json: bool
    ) -> None:
        from promotion.index.ledger_state import EntryKind

        _mark(state, EntryKind(kind), sets, reason, bucket, dry_run=dry_run, as_json=as_json)

    return command


yank = _marking("yank", "yank", "Hide sets from users who do not pin them (PEP 592).", reason=True)
unyank = _marking("unyank", "unyank", "Undo a yank.", reason=False)
quarantine = _marking(
    "quarantine", "quarantine", "Withdraw sets until `unquarantine`; a rollback does not restore them.", reason=True
)
unquarantine = _marking("unquarantine", "free", "Undo a quarantine.", reason=False)
pin = _marking("pin", "pin", "Protect sets from retention.", reason=True)
unpin = _marking("unpin", "unpin", "Undo a pin.", reason=False)


def _mark(
    state: State, kind: EntryKind, sets: tuple[str, ...], reason: str, bucket: str, *, dry_run: bool, as_json: bool
) -> None:
    from promotion.index.operations import mark
    from promotion.storage.keys import ReleasedIndex

    reporter = state.reporter()
    opened = open_bucket(bucket, reporter, dry_run=dry_run)
    by_index: dict[str, list[str]] = {}
    for text in sets:
        index, slash, name = text.rpartition("/")
        if not slash:
            raise click.UsageError(f"{text!r} is not a set: write INDEX/DIGEST or INDEX/NUMBER.")
        by_index.setdefault(index, []).append(name)
    results = []
    for index, names in by_index.items():
        done = mark(opened, ReleasedIndex(index=index), kind, names, reason=reason, actor=actor())
        results.append(_result(index, done))
        if not as_json:
            _report(done, reporter.line)
    if as_json:
        print_json(results)


def _result(index: str, done: OperationResult) -> Mapping[str, object]:
    """Return a change of an index as JSON values; `ledger_entry` is null if there was nothing to do."""
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
        ("not restored, since in quarantine, retired or removed", done.withheld),
    ):
        if numbers:
            line(f"  {text}: the sets of entries {', '.join(map(str, numbers))}")
    if done.entry is None:
        line("nothing to do" if done.withheld else "nothing to do: the index is already in this state")
        return
    line(f"ledger entry {done.entry.number}: {done.entry.kind}; {len(done.pages)} pages written")


@cloup.command()
@click.argument("index")
@click.option(
    "--days",
    type=click.FloatRange(0),
    required=True,
    metavar="DAYS",
    help="Remove sets promoted more than DAYS days ago from the pages.",
)
@click.option(
    "--keep-newest",
    type=click.IntRange(0),
    default=3,
    show_default=True,
    metavar="N",
    help="Always keep the N newest sets.",
)
@click.option("--keep-lock", multiple=True, type=click.Path(path_type=Path, exists=True), metavar="FILE",
              help="Keep the sets that this pylock.toml or wheels.json names; may be repeated.")  # fmt: skip
@click.option("--grace-days", type=click.FloatRange(0), default=7, show_default=True, metavar="DAYS",
              help="Delete the files of removed sets after DAYS days.")  # fmt: skip
@click.option("--apply", "really", is_flag=True, help="Apply the plan. Without it, only print the plan.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@bucket_option
@click.pass_obj
def retention(
    state: State,
    /,
    index: str,
    days: float,
    keep_newest: int,
    keep_lock: tuple[Path, ...],
    grace_days: float,
    bucket: str,
    *,
    really: bool,
    as_json: bool,
) -> None:
    """Remove old sets of INDEX from its pages, and later their files from the bucket."""
    from promotion.index.retention import RetentionRule, apply, digests_in, plan
    from promotion.storage.keys import ReleasedIndex

    reporter = state.reporter()
    opened, released = open_bucket(bucket, reporter), ReleasedIndex(index=index)
    keep = frozenset(digest for path in keep_lock for digest in digests_in(path))
    rule = RetentionRule(days=days, keep_newest=keep_newest, keep=keep, grace_days=grace_days)
    made = apply(opened, released, rule, actor=actor()) if really else plan(opened, released, rule)
    if as_json:
        print_json(made)
        return
    for number, why in made.kept.items():
        reporter.line(f"  the set of entry {number} stays: {why}")
    for word, numbers in (("leaves the pages", made.retire), ("is removed", made.sweep)):
        for number in numbers:
            reporter.line(f"  the set of entry {number} {word}")
    for key in made.remove:
        reporter.line(f"  remove {key}")
    if not (made.retire or made.sweep):
        reporter.line("nothing to do")
    elif not really:
        reporter.line("nothing was changed; --apply applies the plan")


@cloup.command()
@click.argument("index")
@click.option(
    "--tests",
    is_flag=False,
    flag_value="*",
    metavar="[PATTERN]",
    help="List results of tests whose names match PATTERN (* and ?).",
)
@click.option("--trend", is_flag=True, help="With --tests: summarize each run, with the reasons of skips.")
@click.option("--rebuild", is_flag=True, help="With --tests: first index the results of all staged evidence.")
@click.option("--family", metavar="NAME", help="With --tests: only runs on this GPU family.")
@click.option(
    "--limit", type=click.IntRange(1), metavar="N", help="With --tests: maximal number of lines.  [default: 1000]"
)
@click.option("--json", "as_json", is_flag=True, help="Print the entries as JSON.")
@bucket_option
@click.pass_obj
def history(
    state: State,
    /,
    index: str,
    bucket: str,
    *,
    tests: str | None,
    trend: bool,
    rebuild: bool,
    family: str | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """List the changes of INDEX or the results of its tests, newest first."""
    from promotion.index.operations import history as entries_of
    from promotion.storage.keys import ReleasedIndex

    if tests is not None:
        from ci_build.cli.commands.test_runs import print_history

        if trend and tests != "*":
            raise RequestError("--trend summarizes whole runs.", hint="Give --tests without a pattern.")
        print_history(state, index, bucket, tests, family, limit or 1000, trend=trend, rebuild=rebuild, as_json=as_json)
        return
    if trend or rebuild or family is not None or limit is not None:
        text = "--trend, --rebuild, --family and --limit have no effect without --tests."
        raise RequestError(text, hint="Give --tests, too.")
    entries = [*entries_of(open_bucket(bucket, state.reporter()), ReleasedIndex(index=index))]
    if as_json:
        print_json(entries)
        return
    from core.report import print_table

    visible = {*entries[0].state.visible}
    rows = [
        (
            str(entry.number),
            entry.time,
            entry.kind.value,
            entry.promoted.set_digest[:12] if entry.promoted else ", ".join(map(str, entry.sets or (entry.to,))),
            f"jax {entry.promoted.jax_version}, ROCm {entry.promoted.rocm_version}" if entry.promoted else "",
            "yes" if entry.number in visible else "",
            entry.actor,
            entry.reason,
        )
        for entry in entries
    ]
    print_table(("entry", "time", "what", "set", "of", "offered", "by", "reason"), rows)


@cloup.command()
@click.argument("index")
@click.option(
    "--read", is_flag=True, help="Download and hash every file, even where the store reports a trusted checksum."
)
@trust_config_option
@bucket_option
@_json_option
@click.pass_obj
def verify(state: State, /, index: str, trust_config: Path | None, bucket: str, *, read: bool, as_json: bool) -> None:
    """Recompute ledger, files, attestations and pages of INDEX, and report differences."""
    from promotion.evidence.attestation_verification import lazy_verifier
    from promotion.index.audit import verify as problems_of
    from promotion.storage.keys import ReleasedIndex

    reporter = state.reporter()
    reporter.step(f"verify {index}")
    opened, checked = open_bucket(bucket, reporter), lazy_verifier(trust_config)
    problems = [*problems_of(opened, ReleasedIndex(index=index), reporter, read=read, verify_attestations=checked)]
    if as_json:
        print_json({"index": index, "problems": problems})
    if problems:
        raise BucketError(
            "\n  ".join((f"{index} differs from its ledger:", *problems)),
            hint="\nRestore the named files from a backup; `index publish --everything` rewrites the pages.",
        )
    if not as_json:
        reporter.line(f"{index} matches its ledger")
