"""`ci_build rollback`, `yank`, `quarantine`, `pin` and what takes them back; `retention`, `history`, `verify`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
import cloup

from ci_build.cli import options
from ci_build.cli.common import State, open_bucket, print_json
from core.errors import BucketError, RequestError

if TYPE_CHECKING:
    from promotion.index.ledger_state import EntryKind
    from promotion.index.operations import OperationResult


_json_option = click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")


@cloup.command()
@click.argument("index")
@click.option("--to", type=click.IntRange(0), metavar="N", help="Ledger entry to go back to; the last state if none.")
@click.option("--reason", required=True, help="Why, for whoever reads the ledger.")
@options.bucket_option
@options.dry_run_option
@_json_option
@click.pass_obj
def rollback(
    state: State, /, index: str, to: int | None, reason: str, bucket: str, *, dry_run: bool, as_json: bool
) -> None:
    """Let INDEX offer again what it did before, or after ledger entry N; nothing is removed."""
    from promotion.index.operations import rollback as go
    from promotion.storage.keys import ReleasedIndex

    reporter = state.reporter()
    opened = open_bucket(bucket, reporter, dry_run=dry_run)
    done = go(opened, ReleasedIndex(index=index), to=to, reason=reason, actor=options.actor())
    if as_json:
        print_json(_told(index, done))
        return
    _say(done, reporter.line)


def _marking(name: str, kind: str, text: str, *, reason: bool) -> click.Command:
    """A command that marks sets, or takes a mark away."""

    @cloup.command(name, help=text)
    @click.argument("sets", nargs=-1, required=True, metavar="INDEX/SET…")
    @click.option("--reason", required=reason, default="", help="Why, for whoever reads the ledger.")
    @options.bucket_option
    @options.dry_run_option
    @_json_option
    @click.pass_obj
    def command(
        state: State, /, sets: tuple[str, ...], reason: str, bucket: str, *, dry_run: bool, as_json: bool
    ) -> None:
        from promotion.index.ledger_state import EntryKind

        _mark(state, EntryKind(kind), sets, reason, bucket, dry_run=dry_run, as_json=as_json)

    return command


yank = _marking("yank", "yank", "Keep sets only for those who pin them (PEP 592).", reason=True)
unyank = _marking("unyank", "unyank", "Take a yank back.", reason=False)
quarantine = _marking(
    "quarantine", "quarantine", "Stop offering sets until they are freed, whatever is rolled back.", reason=True
)
unquarantine = _marking("unquarantine", "free", "Undo a quarantine.", reason=False)
pin = _marking("pin", "pin", "Let retention leave sets alone.", reason=True)
unpin = _marking("unpin", "unpin", "Take a pin back.", reason=False)


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
            raise click.UsageError(f"{text!r} is no set: write INDEX/DIGEST or INDEX/NUMBER.")
        by_index.setdefault(index, []).append(name)
    told = []
    for index, names in by_index.items():
        done = mark(opened, ReleasedIndex(index=index), kind, names, reason=reason, actor=options.actor())
        told.append(_told(index, done))
        if not as_json:
            _say(done, reporter.line)
    if as_json:
        print_json(told)


def _told(index: str, done: OperationResult) -> Mapping[str, object]:
    """What a change of an index did, as JSON values; `ledger_entry` is null where there was nothing to do."""
    return {
        "index": index,
        "ledger_entry": done.entry.number if done.entry else None,
        "now_offered": done.appeared,
        "no_longer_offered": done.vanished,
        "withheld": done.withheld,
        "pages": done.pages,
    }


def _say(done: OperationResult, line: Callable[[str], None]) -> None:
    for word, numbers in (
        ("now offered", done.appeared),
        ("no longer offered", done.vanished),
        ("not brought back, since in quarantine, retired or removed", done.withheld),
    ):
        if numbers:
            line(f"  {word}: the sets of entries {', '.join(map(str, numbers))}")
    if done.entry is None:
        line("nothing to do" if done.withheld else "nothing to do: the index is as you want it")
        return
    line(f"ledger entry {done.entry.number}: {done.entry.kind}; {len(done.pages)} pages written")


@cloup.command()
@click.argument("index")
@click.option("--days", type=click.FloatRange(0), required=True, help="Sets promoted longer ago leave the pages.")
@click.option("--keep-newest", type=click.IntRange(0), default=3, show_default=True, help="So many always stay.")
@click.option("--keep-lock", multiple=True, type=click.Path(path_type=Path, exists=True), help="A pylock.toml or "
              "wheels.json in use: what it names stays.")  # fmt: skip
@click.option("--grace-days", type=click.FloatRange(0), default=7, show_default=True, help="Days from the pages to "
              "the removal of bytes.")  # fmt: skip
@click.option("--apply", "really", is_flag=True, help="Do it; otherwise it is only told.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@options.bucket_option
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
    """Let old sets of INDEX go: first from the pages, and after some days of grace from the bucket."""
    from promotion.index.retention import RetentionRule, apply, digests_in, plan
    from promotion.storage.keys import ReleasedIndex

    reporter = state.reporter()
    opened, released = open_bucket(bucket, reporter), ReleasedIndex(index=index)
    keep = frozenset(digest for path in keep_lock for digest in digests_in(path))
    rule = RetentionRule(days=days, keep_newest=keep_newest, keep=keep, grace_days=grace_days)
    made = apply(opened, released, rule, actor=options.actor()) if really else plan(opened, released, rule)
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
        reporter.line("nothing was changed; --apply does it")


@cloup.command()
@click.argument("index")
@click.option(
    "--tests",
    is_flag=False,
    flag_value="*",
    metavar="[PATTERN]",
    help="What became of tests that were run on its sets.",
)
@click.option("--trend", is_flag=True, help="With --tests: how each run went as a whole, and why tests were skipped.")
@click.option("--rebuild", is_flag=True, help="With --tests: first write down all that staged evidence says.")
@click.option("--family", metavar="NAME", help="With --tests: only on machines of this family.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="With --tests: at most so many lines (1000).")
@click.option("--json", "as_json", is_flag=True, help="Print the entries as JSON.")
@options.bucket_option
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
    """List what happened to INDEX, newest first; with --tests to tests whose names match PATTERN (* and ?)."""
    from promotion.index.operations import history as entries_of
    from promotion.storage.keys import ReleasedIndex

    if tests is not None:
        from ci_build.cli.commands.test_runs import print_history

        if trend and tests != "*":
            raise RequestError("--trend is of whole runs.", hint="Give --tests without a pattern.")
        print_history(state, index, bucket, tests, family, limit or 1000, trend=trend, rebuild=rebuild, as_json=as_json)
        return
    if trend or rebuild or family is not None or limit is not None:
        what = "--trend, --rebuild, --family and --limit are of the history of tests."
        raise RequestError(what, hint="Give --tests, too.")
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
@click.option("--read", is_flag=True, help="Fetch and hash all bytes, also where the store vouches for a checksum.")
@options.trust_config_option
@options.bucket_option
@_json_option
@click.pass_obj
def verify(state: State, /, index: str, trust_config: Path | None, bucket: str, *, read: bool, as_json: bool) -> None:
    """Compute everything about INDEX again: chain, bytes of every set, attestations, pages; tell what differs."""
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
            "\n  ".join((f"{index} is not as its ledger says:", *problems)),
            hint="\nRestore what each line names from a backup; `index publish --everything` makes pages again.",
        )
    if not as_json:
        reporter.line(f"{index} is as its ledger says")
