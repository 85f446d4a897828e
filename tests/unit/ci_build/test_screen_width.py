"""Output of every command on narrow terminals, with --quiet and as JSON."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

import core.http.client  # noqa: F401 - urllib3 binds a socket when it is imported
from ci_build import cli
from core.terminal import fold
from promotion.stage import stage
from promotion.storage.directory_bucket import DirBucket
from tests.support.promoting import go, staged_in
from tests.support.wheel_sets import make_set, make_wheels, write_set

pytestmark = pytest.mark.usefixtures("clean_main")

READ = (
    "targets",
    "sources",
    "kernels list",
    "cache {cache}",
    "cache {cache} --cache-limit=1GB --dry-run",
    "status {cache} {bucket} --channel=local",
    "set collect multi-arch {bucket}",
    "set collect multi-arch --days=0 {bucket}",
    "ci policy {ready} {bucket} --channel=local",
    "index history multi-arch {bucket}",
    "inspect {wheels} --targets=gfx942,gfx950",
    "index verify multi-arch {bucket}",
    "index retention multi-arch --days=1 {bucket}",
    "index rollback multi-arch --reason=because --dry-run {bucket}",
    "ci matrix --rocm-version=7.2.0 --family=gfx94X-dcgpu",
    "ci tests {ready} {bucket}",
    "dist_wheels --payload=published --dry-run",
    "release --local --dry-run {bucket}",
    "images build --dry-run",
    "kernels build --dry-run",
    "set repair {wheels} --targets=gfx942 --rocm-version=7.2.0 --out={out} --dry-run",
    "ci keys {key}",
)
"""Commands that change nothing; words in braces stand for folders and sets."""
CHANGING = (
    "ci keys --out {new_key}",
    "set adopt {wheels} --out={out}",
    "index init {out}",
    "set stage {folder} {bucket}",
    "gate inspection {ready} {bucket} --redo",
    "promote {ready} {bucket}",
    "index yank multi-arch/2 --reason=because {bucket}",
    "index yank multi-arch/2 --undo {bucket}",
    "index quarantine multi-arch/2 --reason=because {bucket}",
    "index quarantine multi-arch/2 --undo {bucket}",
    "index pin multi-arch/2 --reason=because {bucket}",
    "index pin multi-arch/2 --undo {bucket}",
    "index retention multi-arch --days=1 --keep-newest=1 --apply {bucket}",
    "index verify multi-arch --repair {bucket}",
    "index compat multi-arch {bucket}",
)
WRONG = (
    (
        "inspect"
        " {bucket_folder}/no-such-folder-with-a-long-name/jax_rocm7_pjrt-0.10.2-py3-none-any.whl"
    ),
    "gate coverage multi-arch {bucket}",
    "dist_wheels --tagets=gfx942",
    "dist_wheels --targets=gfx9999",
    "promote {blocked} {bucket}",
    "no_such_command",
    "inspect {wheels} --targets=gfx942",
    "ci policy {blocked} {bucket} --channel=local",
    "gate inspection {blocked} {bucket} --redo",
)
"""Commands that fail."""
FOR_PROGRAMS = ("ci matrix", "ci tests", "ci keys", "index compat")
"""Commands whose output is a file or the value of an option."""
COPIED = re.compile(
    r"\s*(\$ |[$#]? ?(pip|uv|docker|podman|python3|ci_build|http|/\S+python -m"
    r" pip)\b)|.* \\$|  requires "
)
"""Lines with a command, or a value in a second column, that users copy."""


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the words of the commands in braces.

    A bucket with promoted, ready and blocked sets, wheels, a cache.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("CI", "true")  # the display has its own tests
    for name in ("COLUMNS", "GITHUB_ACTIONS", "GITLAB_CI", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    bucket = DirBucket(tmp_path / "bucket")
    made = {
        minor: make_wheels(
            tmp_path / f"wheels{minor}",
            version=f"0.10.2+rocm7.{minor}.0",
            pythons=("3.12",),
        )
        for minor in (1, 2, 3, 4)
    }
    for minor in (1, 2):
        go(
            bucket,
            staged_in(
                bucket, tmp_path / "sets", made[minor], rocm_version=f"7.{minor}.0"
            ),
        )
    ready = staged_in(bucket, tmp_path / "sets", made[3], rocm_version="7.3.0")
    folder = write_set(tmp_path / "blocked", made[4], make_set(made[4]))
    blocked = stage(bucket, folder)
    (tmp_path / "cache/inputs/abc").mkdir(parents=True)
    (tmp_path / "cache/inputs/abc/a.whl").write_bytes(b"x")
    words = {
        "bucket": f"--bucket={bucket.root}",
        "bucket_folder": str(bucket.root),
        "cache": f"--cache-dir={tmp_path}/cache",
        "ready": str(ready),
        "blocked": str(blocked),
        "folder": str(folder),
        "wheels": str(tmp_path / "blocked"),
        "key": str(tmp_path / "key"),
        "out": str(tmp_path / "out"),
        "new_key": str(tmp_path / "new-key"),
    }
    assert cli.run(["ci", "keys", "--out", words["key"]]) == 0
    return words


class Terminal(io.StringIO):
    """A stream with a descriptor, whose terminal has the size of a test."""

    def fileno(self) -> int:
        return 1


@dataclass
class Printed:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


def run(
    line: str,
    places: dict[str, str],
    *more: str,
    columns: int = 80,
) -> Printed:
    words = [word.format(**places) for word in line.split()]
    out = Terminal()
    err = Terminal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        size = os.terminal_size((columns, 24))
        patch.setattr(os, "get_terminal_size", lambda _=1: size)
        code = cli.run([*more, *words])
    return Printed(code=code, out=out.getvalue(), err=err.getvalue())


def too_wide(text: str, columns: int) -> Iterator[str]:
    """Yield lines that are wider than the terminal although they could be narrower."""
    for line in map(str.rstrip, re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()):
        longest = max(map(len, line.split()), default=0)
        if longest + 4 > columns or COPIED.match(line):
            continue
        if fold(line, columns) != line:
            yield line


def test_every_command_fits_a_narrow_terminal(places: dict[str, str]) -> None:
    columns = 40
    wide = list[str]()
    failed = list[str]()
    for line in (*READ, *CHANGING, *WRONG):
        printed = run(line, places, columns=columns)
        if (printed.code == 0) == (line in WRONG):
            failed.append(f"{line}: {printed.code} {printed.err}")
        if not line.startswith(FOR_PROGRAMS):
            wide += [
                f"{line}: {text}"
                for text in too_wide(f"{printed.out}\n{printed.err}", columns)
            ]
    assert "\n".join([*wide, *failed]) == ""


def test_quiet_prints_results_warnings_and_errors_only(places: dict[str, str]) -> None:
    loud = list[str]()
    changed = list[str]()
    for line in (*READ, *CHANGING, *WRONG):
        printed = run(line, places, "--quiet")
        loud += [
            f"{line}: {text}"
            for text in printed.err.splitlines()
            if not text.startswith("warning: ") and line not in WRONG
        ]
        if line in READ:
            assert printed.code == 0, printed.err
            said = run(line, places).out
            changed += [line] if said != printed.out else []
    assert "\n".join([*loud, *changed]) == ""


def test_json_is_alone_on_standard_output(places: dict[str, str]) -> None:
    wrong = []
    for line in (*READ, *CHANGING):
        found: click.Command = cli.main
        for word in line.split():
            if isinstance(found, click.Group) and (
                below := found.get_command(click.Context(found), word)
            ):
                found = below
        if not any("--json" in option.opts for option in found.params):
            continue
        printed = run(f"{line} --json", places, columns=40)
        try:
            json.loads(printed.out)
        except ValueError as error:
            wrong.append(f"{line}: {error}: {printed.out}{printed.err}")
    assert "\n".join(wrong) == ""
