"""The command line where people err: one clear line and an exit code, never a traceback, and nothing ignored."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.integration.conftest import CI_BUILD


def ci_build(*words: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CI_BUILD, *words], capture_output=True, text=True, check=False, cwd=cwd, env={**os.environ, **(env or {})}
    )


def test_a_word_from_the_environment_is_checked_and_its_variable_named(tmp_path: Path) -> None:
    done = ci_build("dist_wheels", cwd=tmp_path, env={"CI_BUILD_PAYLOAD": "elsewhere"})
    assert (done.returncode, done.stderr) == (
        2,
        "error: CI_BUILD_PAYLOAD is 'elsewhere'. Give one of source, published.\n",
    )


@pytest.mark.parametrize("command", ["stage", "promote", "gate", "inspect", "targets", "index"])
def test_build_options_before_a_command_that_makes_no_wheels_are_refused(command: str, tmp_path: Path) -> None:
    done = ci_build("--dry-run", "--targets=gfx942", command, "something", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: `{command}` does not take --dry-run, --targets.")


def test_verbose_may_stand_before_every_command(tmp_path: Path) -> None:
    assert ci_build("-v", "targets", cwd=tmp_path).returncode == 0


def test_the_environment_can_name_the_bucket(tmp_path: Path) -> None:
    done = ci_build("index", "serve", cwd=tmp_path, env={"CI_BUILD_BUCKET": "elsewhere"})
    assert (done.returncode, done.stderr.partition(".")[0]) == (2, "error: elsewhere is not a folder")


@pytest.mark.parametrize("port", ["-1", "65536"])
def test_a_port_that_cannot_be_is_refused(port: str, tmp_path: Path) -> None:
    done = ci_build("index", "serve", "--bucket=.", f"--port={port}", cwd=tmp_path)
    assert done.returncode == 2
    assert "0<=x<=65535" in done.stderr


def test_a_terminal_without_unicode_gets_help_all_the_same(tmp_path: Path) -> None:
    done = ci_build("dist_wheels", "--help", cwd=tmp_path, env={"PYTHONIOENCODING": "latin-1"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "--targets" in done.stdout


def test_credentials_of_a_url_are_not_repeated(tmp_path: Path) -> None:
    done = ci_build("inspect", "https://me:secret@index.invalid/no-wheel.txt", cwd=tmp_path)
    assert (done.returncode, "secret" in done.stderr) == (6, False)
    assert "https://****@index.invalid/no-wheel.txt does not name a wheel" in done.stderr
