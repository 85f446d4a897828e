"""Pages of the documentation: the program accepts their commands; their links exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from core.defaults import defaults
from tests.support.commands import parse

ROOT = Path(__file__).resolve().parents[3]
FENCE = re.compile(r"```console\n(.*?)```", re.DOTALL)
DOCS = sorted((ROOT / "docs").glob("*.md"))
TUTORIAL = "docs/tutorial.md"

PAGES = (
    "README.md",
    "docs/build-from-source.md",
    "docs/cluster.md",
    "docs/first-release.md",
    "docs/gpu-tests.md",
    "docs/kernels.md",
    "docs/nightly.md",
    "docs/offline-tests.md",
    "docs/operate-an-index.md",
    "docs/release.md",
    "docs/rocm-sources.md",
    "docs/trust.md",
    TUTORIAL,
    "docker/README.md",
    "promotion/gates/README.md",
)
"""Pages with commands."""


def commands(page: str = PAGES[0]) -> list[str]:
    text = (ROOT / page).read_text()
    lines = []
    for block in FENCE.findall(text):
        lines.extend(block.splitlines())
    return [
        line.removeprefix("$ ").split("#")[0].strip() for line in lines if line.strip()
    ]


def test_tutorial_installs_the_versions_that_release_local_builds() -> None:
    jax = defaults()["pythons"]["jax_version"]
    targets = defaults()["release_local"]["targets"].replace(",", ".")
    [line] = [line for line in commands(TUTORIAL) if "jax-rocm7-plugin" in line]
    plugin = re.compile(
        rf"jax-rocm7-plugin=={re.escape(jax)}\+rocm7[0-9.]+\.{re.escape(targets)}"
    )
    assert {f"jax=={jax}", f"jaxlib=={jax}"} < set(line.split())
    assert plugin.fullmatch(line.split()[-1])


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
        if page.name == "CHANGELOG.md":
            continue  # it names commands of the past
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
        words = shlex.split(line.replace("…", " "), comments=True)
        end = next(
            (
                at
                for at, word in enumerate(words)
                if word in (";", "&", "&&", "|", "||", ">")
            ),
            len(words),
        )
        start = next(at for at, word in enumerate(words) if word.endswith("ci_build"))
        try:
            parse(words[start + 1 : end])
        except click.UsageError as error:
            pytest.fail(f"{line}: {error.format_message()}")
