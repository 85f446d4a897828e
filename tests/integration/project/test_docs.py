"""Pages of the documentation: the program accepts their commands; their links exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from core.targets import table
from tests.support.commands import parse

ROOT = Path(__file__).resolve().parents[3]
FENCE = re.compile(r"```console\n(.*?)```", re.DOTALL)
DOCS = sorted((ROOT / "docs").glob("*.md"))
INSTALL = "docs/install.md"
TUTORIAL = "docs/tutorial.md"


def commands(page: str) -> list[str]:
    text = (ROOT / page).read_text()
    lines = []
    for block in FENCE.findall(text):
        lines.extend(block.splitlines())
    return [line[2:].split("#")[0].strip() for line in lines if line.startswith("$ ")]


def test_install_page_has_every_gpu_of_xla_and_pins_versions() -> None:
    text = (ROOT / INSTALL).read_text()
    for row in table():
        if row.xla and row.product:
            assert f"| {row.product} | `{row.name}` |" in text
    lines = "\n".join(line for line in commands(INSTALL) if "pip install" in line)
    packages = re.findall(r" '?((?:jax|rocm)[^/\s]*)(?=\s|$)", lines)
    assert len(packages) > 4
    assert [name for name in packages if "==" not in name] == []


ALL_PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *DOCS,
    ROOT / "docker/README.md",
    ROOT / "promotion/gates/README.md",
]


BLOCK = re.compile(r"```(?:console|sh|yaml)\n(.*?)```", re.DOTALL)
SPAN = re.compile(r"`((?:python3 build/)?ci_build [^`]+)`")


def test_program_accepts_every_command_that_a_page_mentions() -> None:
    """Commands that need AMD's or several machines exist with their options too."""
    found: list[str] = []
    for page in ALL_PAGES:
        text = page.read_text()
        for block in BLOCK.findall(text):
            lines = block.replace("\\\n", " ").splitlines()
            found += [
                line.removeprefix("$ ").strip()
                for line in lines
                if re.match(r"(\$ )?\s*(python3 build/)?ci_build ", line)
            ]
        found += SPAN.findall(" ".join(text.split()))
    assert len(found) > 100
    for line in found:
        line = re.split(r" (?:;|&|&&|\||\|\||>) ", line.replace("…", " "))[0]
        words = shlex.split(line, comments=True)
        start = next(at for at, word in enumerate(words) if word.endswith("ci_build"))
        try:
            parse(words[start + 1 :])
        except click.UsageError as error:
            pytest.fail(f"{line}: {error.format_message()}")
