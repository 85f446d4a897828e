"""The help of the command line: groups and commands."""

from __future__ import annotations

import click
import pytest

from ci_build.cli import SECTIONS, main, run

NAMES = [name for entries in SECTIONS.values() for names in entries for name in names.split(", ")]


def command(name: str) -> click.Command:
    found = main.get_command(click.Context(main), name)
    assert found is not None, name
    return found


def help_text(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run([*words, "--help"]) == 0
    return capsys.readouterr().out


def test_top_level_help_fits_one_screen_without_build_options(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_text(capsys)
    assert len(text.splitlines()) <= 58
    assert max(map(len, text.splitlines())) <= 80
    assert "--targets" not in text
    assert [line[:-1] for line in text.splitlines() if line[:1].isalpha() and line.endswith(":")] == [*SECTIONS]


@pytest.mark.parametrize("name", NAMES)
def test_every_command_of_the_table_is_found(name: str) -> None:
    assert command(name).callback is not None
