"""The help of the command line: groups, summaries and defaults."""

from __future__ import annotations

import click
import pytest

from ci_build.cli import SECTIONS, main, run
from ci_build.cli.options.cluster import CLUSTER_VARIABLES
from ci_build.cli.options.table import option_names
from core.defaults import defaults

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


def test_dist_wheels_help_shows_all_options_in_groups_with_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_text(capsys, "dist_wheels")
    listed = {option.opts[0] for option in command("dist_wheels").params if isinstance(option, click.Option)}
    assert len(listed) == len(option_names()) + len(CLUSTER_VARIABLES)
    assert all(option in text for option in listed)
    ungrouped = text.partition("Other options:\n")[2].splitlines()
    assert [line.split()[:2] for line in ungrouped] == [["-h,", "--help"]]
    shown = "".join(text.split())  # lines are also broken at the hyphens of a URL
    for name, value in defaults()["build"].items():
        assert f"[default:{value}]" in shown, name
