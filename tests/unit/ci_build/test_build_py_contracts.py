"""Our commands and the recorded contracts of upstream's build/build.py.

`python -m tests.support.build_py_contracts` records the contracts with the real
build.py; its help names the checkouts.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from ci_build.wheelset.source import pins
from ci_build.wheelset.source.build_py import BuildCommand
from tests.support.build_py_contracts import MAIN, RECORDED, commands, given
from tests.support.golden_build_py import RELEASES

CONTRACTS: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
NAMES = (*RELEASES, MAIN)


def commands_of(name: str) -> tuple[BuildCommand, ...]:
    return commands(RELEASES[-1] if name == MAIN else name)


def test_contracts_cover_recorded_releases_and_main() -> None:
    assert tuple(CONTRACTS) == NAMES, "run `python -m tests.support.build_py_contracts`"
    for release in RELEASES:
        pinned = pins.pins_for(release)
        commits = CONTRACTS[release]["commits"]
        assert pinned is not None
        assert commits.get("rocm-jax", "") == pinned.rocm_jax
        assert commits["jax"] in (pinned.jax, pins.load_pins().tags[release])


@pytest.mark.parametrize("name", NAMES)
def test_commands_are_those_that_the_real_build_py_ran(name: str) -> None:
    assert {
        command.target: given(command) for command in commands_of(name)
    } == CONTRACTS[name]["wheels"], (
        "the arguments of build.py changed: run `python -m tests.support.build_py_contracts`"
    )


@pytest.mark.parametrize("name", NAMES)
def test_build_py_accepts_every_option(name: str) -> None:
    for command in commands_of(name):
        used = {word.partition("=")[0] for word in command.argv[3:]}
        assert used <= set(CONTRACTS[name]["accepts"][command.cwd])
