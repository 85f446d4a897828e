"""The authority of a command over a ledger.

The policy of the index's channel, its checkout, the signing key, and the newest entries
that this user has seen.

Whoever can write the bucket and holds a ledger key can cut or rewrite a ledger, and
nothing in the bucket shows it. Each promotion and each `index verify` therefore compares
the ledger with the entry that the one before it recorded outside of the bucket, as with
`--since`. The record is a folder for each bucket, with one file for each index.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from ci_build.release.release_request import LedgerRequest, SigningKey
from core.atomic import write_whole
from core.errors import BucketError, ProcessError, RequestError
from core.process import Runner
from promotion.check import ALLOW_UNPROTECTED
from promotion.evidence.signing import Signer, load_signer
from promotion.index.authority import Authority, PolicySource
from promotion.index.ledger import Entries, LedgerEntry, RecordedEntry
from promotion.index.operations import utc_now
from promotion.index.publish import read_head
from promotion.policy.promotion_policy import (
    LOCAL,
    POLICY_FILE,
    channel_names,
    load_policy,
)
from promotion.storage.bucket import Bucket
from promotion.storage.dry_run import DryRunBucket
from promotion.storage.object_keys import ReleasedIndex


def find_authority(
    bucket: Bucket, released: ReleasedIndex, request: LedgerRequest, runner: Runner
) -> Authority:
    """Return the authority of a command that changes the ledger of an index.

    Raises:
        RequestError: the index belongs to another channel than the requested one, or
            the key is invalid. Or no channel was requested, and the key is listed for
            another one than that of the ledger.
    """
    authority = read_authority(bucket, released, request.channel or None)
    signer = signer_of(request.key) if request.key else None
    if signer is not None and authority.keys is None and not request.channel:
        _refuse_listed_key(released, authority, signer)
    source = policy_source(request, runner)
    return replace(authority, signer=signer, source=source, actor=request.actor)


def read_authority(
    bucket: Bucket, released: ReleasedIndex, channel: str | None
) -> Authority:
    """Return the authority of a command that reads the ledger of an index.

    Args:
        channel: channel of the index. None means that of the first entry, since later
            entries may be forged.

    Raises:
        RequestError: the index belongs to another channel.
    """
    entry = Entries(bucket, released).find(1)
    first = entry[0].channel if entry else ""
    if channel and first not in ("", channel):
        raise RequestError(
            f"The index {released.index} belongs to channel {first}, not {channel}.",
            hint=f"Give --channel={first}, unless its ledger was replaced.",
        )
    return load_policy(released.index, channel=channel or first or LOCAL).authority()


def _refuse_listed_key(
    released: ReleasedIndex, authority: Authority, signer: Signer
) -> None:
    """Refuse to sign entries that need no signature with a key that other channels trust.

    Whoever replaces the first entry of an index chooses the channel that its ledger
    names.

    Raises:
        RequestError: the policy of a channel lists the key.
    """
    channels = []
    for channel in channel_names():
        listed = load_policy(released.index, channel=channel).ledger_keys or {}
        if signer.key in [item.key for item in listed.values()]:
            channels.append(channel)
    if channels:
        raise RequestError(
            f"Without --channel, {released.index} is an index of channel"
            f" {authority.channel}, but the ledger key is listed for"
            f" {', '.join(channels)}.",
            hint=(
                f"Give --channel={channels[0]}, or --channel={authority.channel} if the"
                " index is not of that channel."
            ),
        )


def check_authority(index: str, request: LedgerRequest, runner: Runner) -> None:
    """Refuse early a promotion that the channel's policy would refuse for key or checkout.

    Raises:
        RequestError: the key is missing or not listed, or the checkout is changed or of
            an unprotected ref.
    """
    policy = load_policy(index, channel=request.channel)
    signer = signer_of(request.key) if request.key else None
    policy.authority(signer).check_signer(utc_now())
    source = policy_source(request, runner)
    if (problem := source.problem(policy.protected_refs)) and not source.owner:
        raise RequestError(problem, hint=ALLOW_UNPROTECTED)


def signer_of(key: SigningKey) -> Signer:
    """Return the signer with a key; RequestError if the key is invalid."""
    if key.file:
        return load_signer(key.file)
    return Signer(key.text.encode(), origin=key.origin)


def policy_source(request: LedgerRequest, runner: Runner) -> PolicySource:
    """Return the Git checkout of the policy.

    The ref of a CI run counts instead of the checked-out branch if the run is for the
    checked-out commit, since CI services check out detached commits and pull requests.
    """
    text = _git_status(runner)
    if text is None:
        return PolicySource(owner=request.owner, reason=request.reason)
    lines = text.splitlines()
    headers = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# "))
    commit = headers.get("branch.oid", "")
    head = headers.get("branch.head", "(detached)")
    ref = request.ci_ref if request.ci_ref and request.ci_commit == commit else ""
    return PolicySource(
        commit=commit,
        ref=ref or ("" if head == "(detached)" else f"refs/heads/{head}"),
        clean=all(line.startswith("# ") for line in lines),
        owner=request.owner,
        reason=request.reason,
    )


def committed_policies(runner: Runner) -> frozenset[str] | None:
    """Return the blob of each committed policy, or None if the history is incomplete."""
    rows = _git_history(runner)
    return frozenset(row.split()[3] for row in rows.splitlines() if row) or None


def _git_history(runner: Runner) -> str:
    """Return `git log --raw` of the policy; empty if no commit has it, or for a shallow clone."""
    log = ("log", "--all", "--format=", "--raw", "--no-abbrev", "--no-renames", "--")
    try:
        shallow = _git(runner, "rev-parse", "--is-shallow-repository")
        rows = _git(runner, *log, _POLICY)
    except ProcessError:
        return ""
    return rows if shallow.strip() == "false" else ""


def history_problem(entry: LedgerEntry, committed: Collection[str]) -> Iterator[str]:
    """Yield a sentence for a promotion whose policy is not committed, unless an owner permitted it.

    Args:
        committed: see `committed_policies`.
    """
    source = entry.source
    if entry.promoted is None or source is None or source.owner or not source.commit:
        return
    data = entry.policy.encode()
    blob = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False)
    if blob.hexdigest() not in committed:
        yield (
            f"Entry {entry.number} contains a policy that no commit of this repository"
            f" has; it names commit {source.commit[:12]}."
        )


_NO_HOOK = dict.fromkeys(("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"), "")
"""Variables of a Git hook, which name another repository."""


_POLICY = f"{POLICY_FILE.parent.name}/{POLICY_FILE.name}"


def _git(runner: Runner, *words: str) -> str:
    """Return the output of git in this checkout."""
    argv = ("git", "-C", str(POLICY_FILE.parents[1]), *words)
    return runner.run(argv, env=_NO_HOOK).stdout


def _git_status(runner: Runner) -> str | None:
    """Return this checkout's `git status` output, or None if no commit has the policy."""
    status = ("status", "--porcelain=v2", "--branch", "--untracked-files=normal")
    try:
        # A folder inside of a foreign checkout, which ignores it, is not part of the
        # commit.
        committed = _git(runner, "show", f"HEAD:./{_POLICY}")
        changes = _git(runner, *status, "--", ".")
    except ProcessError:
        return None
    # `git update-index --assume-unchanged` hides changes from the status.
    if committed == POLICY_FILE.read_text():
        return changes
    return f"{changes}1 .M {POLICY_FILE.name}\n"


def heads_of(request: LedgerRequest, authority: Authority) -> Path | None:
    """Return the folder of a bucket's records, or None.

    Ledgers without keys are local, and often created again.
    """
    return request.heads if authority.keys is not None else None


def recorded_entry(folder: Path, index: str) -> RecordedEntry | None:
    """Return the recorded entry of an index, or None; BucketError if the record is damaged."""
    file = folder / index
    if not file.exists():
        return None
    try:
        return RecordedEntry.parse(file.read_text(encoding="utf-8").strip())
    except ValueError as error:
        raise BucketError(
            f"{file} is no recorded ledger entry: {error}",
            hint="Compare the ledger with a copy, and remove the file.",
        ) from error


def check_recorded(folder: Path, bucket: Bucket, released: ReleasedIndex) -> None:
    """Raise BucketError if a ledger does not contain the recorded entry."""
    if (recorded := recorded_entry(folder, released.index)) is None:
        return
    found = Entries(bucket, released).find(recorded.number)
    if problem := recorded.problem(released, found[1] if found else ""):
        raise BucketError(
            problem,
            hint=(
                "Restore the ledger from a backup. If the index was created again, remove"
                f" {folder / released.index}."
            ),
        )


def record_head(
    folder: Path, bucket: Bucket, released: ReleasedIndex, authority: Authority
) -> None:
    """Record the newest entry of a ledger, unless this is a dry run."""
    if isinstance(bucket, DryRunBucket):
        return
    head, _ = read_head(bucket, released, authority)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / released.index, f"{head.number}:{head.sha256}\n".encode())
