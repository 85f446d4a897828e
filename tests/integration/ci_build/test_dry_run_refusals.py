"""A dry run of a release command refuses what the command itself refuses."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ci_build import cli
from ci_build.release import index_authority as authority
from core.errors import BucketError, CiBuildError, FormatError, RequestError
from promotion.policy.promotion_policy import load_policy
from tests.support.nights import INDEX, Nights, nights, small_release

__all__ = ["nights", "small_release"]

BUILDS = {
    "release": ("release", "--channel=nightly"),
    "nightly": ("nightly", INDEX),
}
"""Commands that build the set of `Nights`."""
CHANGES = {
    "first promote": ("promote", "dist", "--channel=nightly"),
    "promote": ("promote", "dist", "--channel=nightly"),
    "rollback": ("index", "rollback", INDEX, "--reason=x"),
    "yank": ("index", "yank", f"{INDEX}/1", "--reason=x"),
    "repair": ("index", "verify", INDEX, "--repair", "--channel=nightly"),
    "retention": ("index", "retention", INDEX, "--days=1"),
}
"""Commands that change a bucket; the set was promoted before all but the first."""


def code(
    nights: Nights,
    name: str,
    words: tuple[str, ...],
    *,
    dry_run: bool,
) -> int:
    more = ("--dry-run",) if dry_run else ()
    if name in BUILDS:
        return nights.run(*BUILDS[name], *words, *more)
    if name == "retention":
        more = () if dry_run else ("--apply",)
    return cli.run([*CHANGES[name], f"--bucket={nights.bucket}", *words, *more])


def nothing(_: Nights, __: pytest.MonkeyPatch) -> None:
    """Change nothing; the options are wrong."""


def no_policy(nights: Nights, patch: pytest.MonkeyPatch) -> None:
    assert load_policy.__kwdefaults__
    patch.setitem(load_policy.__kwdefaults__, "file", nights.folder / "absent.toml")


def no_ledger_key(_: Nights, patch: pytest.MonkeyPatch) -> None:
    patch.delenv("CI_BUILD_LEDGER_KEY")


def open_key(nights: Nights, _: pytest.MonkeyPatch) -> None:
    """Write a key that others can read."""
    key = nights.folder / "key"
    key.write_text(os.environ["CI_BUILD_LEDGER_KEY"])
    key.chmod(0o644)


def changed_checkout(_: Nights, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(authority, "_git_status", lambda _: "# branch.oid abc\n? new.py\n")


def cut_ledger(nights: Nights, _: pytest.MonkeyPatch) -> None:
    """Remove the only entry, which the promotion recorded outside of the bucket."""
    index = nights.bucket / "v2" / INDEX
    (index / "ledger" / "00000001.json").unlink()
    (index / "status.json").unlink()


ALL = (*BUILDS, *CHANGES)
SIGNING = ("release", "nightly", "first promote", "rollback", "yank", "retention")
HTTP = "--bucket=s3://name?endpoint_url=http://store.example"
Fault = Callable[[Nights, pytest.MonkeyPatch], None]
FAULTS: list[tuple[Fault, tuple[str, ...], tuple[str, ...], type[CiBuildError]]] = [
    (no_policy, (), ALL, FormatError),
    (no_ledger_key, (), SIGNING, RequestError),
    (nothing, ("--ledger-key=absent",), ALL, RequestError),
    (open_key, ("--ledger-key=key",), ALL, RequestError),
    (nothing, ("--signing-key=absent",), ("release", "nightly"), RequestError),
    (changed_checkout, (), ("release", "nightly"), RequestError),
    (nothing, (HTTP,), (*CHANGES,), BucketError),
    (nothing, (HTTP, "--public-url=none"), ("release", "nightly"), BucketError),
    (nothing, ("--bucket=absent",), ALL, RequestError),
    (cut_ledger, (), ("promote", "repair"), BucketError),
]
"""Fault, options, the commands that refuse it, and the error; the last one cannot be undone."""


@pytest.mark.parametrize("name", ALL)
def test_dry_run_refuses_what_the_command_refuses(
    nights: Nights, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(nights.folder / "state"))
    if name in CHANGES:
        steps = (
            "--steps=build,gates" if name == "first promote" else "--public-url=none"
        )
        assert nights.run("release", "--channel=nightly", steps) == 0
    codes = {}
    expected = {}
    for fault, words, names, error in FAULTS:
        if name not in names:
            continue
        key = (fault.__name__, *words)
        expected[key] = (error.exit_code, error.exit_code, True)
        with monkeypatch.context() as patch:
            fault(nights, patch)
            before = files(nights.folder)
            found = (
                code(nights, name, words, dry_run=True),
                code(nights, name, words, dry_run=False),
            )
            codes[key] = (*found, files(nights.folder) == before)
    assert codes == expected


def files(folder: Path) -> dict[Path, int]:
    """Return the times of the last change of all files but locks."""
    return {
        path: path.stat().st_mtime_ns
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }
