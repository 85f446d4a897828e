"""User errors on the command line.

One clear line and an exit code, never a traceback, and nothing ignored.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ci_build.cli import main
from ci_build.cli.options.environment import (
    ENV_PREFIX,
    LEDGER_KEY,
    OTHER_VARIABLES,
    SIGNING_KEY,
)
from ci_build.cli.options.table import option_names
from tests.support.commands import parse

ROOT = Path(__file__).resolve().parents[3]
HEAVY = {
    *(
        "auditwheel",
        "boto3",
        "botocore",
        "cryptography",
        "elftools",
        "isal",
        "jax",
        "numpy",
        "requests",
    ),
    *("rich", "sigstore", "urllib3", "zstandard"),
}
"""Packages that take long to import."""


def commands(
    group: click.Command, context: click.Context, path: str = ""
) -> dict[str, click.Command]:
    """Return a command and all below it, by their paths."""
    found = {path: group}
    if isinstance(group, click.Group):
        for name in group.list_commands(context):
            below = group.get_command(context, name)
            assert below is not None
            found |= commands(below, context, f"{path} {name}".strip())
    return found


LONG = {"dist_wheels", "release", "nightly", "gate"}
"""Commands whose help shows further options with --help-all."""


def test_help_is_short_and_has_an_example() -> None:
    for path, command in commands(main, click.Context(main)).items():
        words = path.split()
        shown = (
            CliRunner().invoke(main, [*words, "--help"], prog_name="ci_build").output
        )
        assert len(shown.splitlines()) <= 60, path
        if not isinstance(command, click.Group) and path != "doctor":
            example = re.findall(r"^  Example: ci_build (.+)$", shown, re.MULTILINE)
            parse(shlex.split(*example))
        everything = shown
        if path in LONG:
            everything = CliRunner().invoke(main, [*words, "--help-all"]).output
        assert not re.search(r"\[default: default\]|\d<=?x|x[<>]=", everything)
        assert not re.search(r"\[default:[^]]*\]\s+\[default", everything)
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert max(option.opts, key=len) in everything, path


def test_variables_are_those_of_options() -> None:
    context = click.Context(main)
    found: set[str] = set()
    for command in commands(main, context).values():
        for option in command.params:
            if isinstance(option, click.Option) and option.envvar:
                found.update(
                    [option.envvar] if isinstance(option.envvar, str) else option.envvar
                )
    every = {ENV_PREFIX + name.upper() for name in (*option_names(), *OTHER_VARIABLES)}
    secrets = {SIGNING_KEY, LEDGER_KEY}
    assert found | secrets == every


def imported(*words: str) -> set[str]:
    """Return the modules that a run of the command line imports."""
    code = (
        f"import sys; from ci_build.cli import run; run({[*words]});"
        " print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return {*done.stderr.split()}


@pytest.mark.parametrize(
    "words",
    [
        "",
        "dist_wheels",
        "gate abi",
        "ci matrix",
        "images build",
        "rocm",
        "ci keys",
    ],
)
def test_help_imports_no_heavy_package(words: str) -> None:
    assert HEAVY & imported(*words.split(), "--help") == set()


def test_dry_run_of_source_build_imports_no_http_client() -> None:
    rocm = "--therock-path=https://host.invalid/therock-dist-linux-gfx94X-dcgpu-7.10.0a20251120.tar.gz"
    modules = imported(
        rocm,
        "--rocm-version=7.10.0a20251120",
        "--python-versions=3.12",
        "dist_wheels",
        "--dry-run",
    )
    assert "ci_build.wheelset.source_build" in modules
    assert {
        "boto3",
        "cryptography",
        "requests",
        "rich",
        "sigstore",
        "urllib3",
    } & modules == set()
