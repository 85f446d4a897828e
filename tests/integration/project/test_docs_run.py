"""Commands of pages run in order in a finished release, and the documentation site."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.integration.conftest import Released, succeed
from tests.integration.project.test_docs import ROOT, TUTORIAL, commands

RELEASE = "python3 build/ci_build release --local"
"""Command that the test of the fresh machine runs."""


@pytest.mark.network
@pytest.mark.parametrize(
    "page",
    [TUTORIAL, "docs/release.md", "docs/nightly.md", "docs/operate-an-index.md"],
)
def test_commands_of_page_run(
    page: str,
    tmp_path: Path,
    released: Released,
    work_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The folder holds the result of `release --local`, as a reader's would.
    released.copy(tmp_path)
    monkeypatch.setenv("CI_BUILD_CACHE_DIR", str(work_cache))
    monkeypatch.setenv("PWD", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for command in commands(page):
        if command == RELEASE:
            continue
        words = shlex.split(os.path.expandvars(command))
        if page == TUTORIAL and words[1:2] == ["-m"]:
            _run_python(words)
            continue
        argv = [sys.executable, str(ROOT / "build" / "ci_build"), *words[2:]]
        assert words[:2] == ["python3", "build/ci_build"], command
        if words[2:4] == ["index", "serve"]:
            _serve(argv)
            continue
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stderr}"


def _run_python(words: list[str]) -> None:
    """Run a command of Python in the tutorial.

    Its environment has the wheels of the set in the end.
    """
    argv = [sys.executable if words[0] == "python3" else words[0], *words[1:]]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}\n{done.stderr}"
    if words[-2:] == ["pip", "list"]:
        assert re.search(r"^jax-rocm7-plugin +\S+\+rocm", done.stdout, re.MULTILINE), (
            done.stdout
        )


def _serve(argv: list[str]) -> None:
    with subprocess.Popen([*argv, "0"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert b"jax-rocm7-plugin" in answer.read()
        process.terminate()
        assert process.wait(60) == 130


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, work_cache: Path) -> Path:
    """Return the site in a folder."""
    folder = tmp_path_factory.mktemp("built") / "site"
    succeed("ci", "docs", "--out", str(folder), f"--cache-dir={work_cache}")
    return folder


@pytest.mark.network
def test_site_is_strict_reproducible_and_complete(
    site: Path, tmp_path: Path, work_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The strict build is clean, repeatable, self-contained and refuses broken links."""
    monkeypatch.setenv("CI_BUILD_CACHE_DIR", str(work_cache))
    again = tmp_path / "again"
    succeed("ci", "docs", "--out", str(again))
    argv = [sys.executable, str(ROOT / "build" / "ci_build"), "ci", "docs"]
    (tmp_path / "bad.md").write_text(
        "# Tables\n\n[one][1] [two][2]\n\n[1]: nothing.md\n[2]: trust.md#nothing\n"
    )
    argv += [
        "--out",
        str(tmp_path / "bad"),
        str(tmp_path / "bad.md"),
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 12
    assert (tmp_path / "bad").exists() is False
    assert "'nothing.md', but the target" in done.stderr
    assert "does not contain an anchor '#nothing'" in done.stderr
    files = {
        path.relative_to(site): path.read_bytes()
        for path in site.rglob("*")
        if path.is_file()
    }
    assert files == {
        path.relative_to(again): path.read_bytes()
        for path in again.rglob("*")
        if path.is_file()
    }
    pages = {
        path: data.decode() for path, data in files.items() if path.suffix == ".html"
    }
    assert len(pages) > 30
    loaded = re.compile(
        r"""<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=["']?((?:https?:)?//[^"' >]+)"""
    )
    assert {
        path: found for path, text in pages.items() if (found := loaded.findall(text))
    } == {}
