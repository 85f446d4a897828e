"""Our commands and the recorded contracts of upstream's build/build.py.

`python -m tests.support.build_py_contracts` records the contracts with the real build.py; its help names the checkouts.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from ci_build.build.source import pins
from ci_build.build.source.build_py import BuildCommand
from tests.support.build_py_contracts import MAIN, RECORDED, SENTINELS, commands, given

CONTRACTS: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
NAMES = (*pins.releases(), MAIN)


def commands_of(name: str) -> tuple[BuildCommand, ...]:
    return commands(pins.releases()[-1] if name == MAIN else name)


def test_contracts_cover_every_release_and_main() -> None:
    assert tuple(CONTRACTS) == NAMES, "run `python -m tests.support.build_py_contracts`"
    for release in pins.releases():
        pinned, commits = pins.pins_for(release), CONTRACTS[release]["commits"]
        assert pinned is not None
        assert commits.get("rocm-jax", "") == pinned.rocm_jax
        assert commits["jax"] in (pinned.jax, pins.load_pins().tags[release])


@pytest.mark.parametrize("name", NAMES)
def test_commands_are_those_that_the_real_build_py_ran(name: str) -> None:
    recorded = {target: wheel["given"] for target, wheel in CONTRACTS[name]["wheels"].items()}
    assert {command.target: given(command) for command in commands_of(name)} == recorded, (
        "the arguments of build.py changed: run `python -m tests.support.build_py_contracts`"
    )


@pytest.mark.parametrize("name", NAMES)
def test_build_py_accepts_every_option(name: str) -> None:
    for command in commands_of(name):
        used = {word.partition("=")[0] for word in command.argv[3:]}
        assert used <= set(CONTRACTS[name]["accepts"][command.cwd])


@pytest.mark.parametrize("name", NAMES)
def test_bazel_options_come_after_those_of_build_py(name: str) -> None:
    # Bazel's later options override earlier ones, such as those that --config=rocm of build.py selects.
    for wheel in CONTRACTS[name]["wheels"].values():
        assert tuple(wheel["options"][-2:]) == SENTINELS
        assert ("--config=rocm" in wheel["options"]) == ("rocm" in wheel["given"][1])


@pytest.mark.parametrize("name", NAMES)
def test_build_py_builds_requested_wheel(name: str) -> None:
    for target, wheel in CONTRACTS[name]["wheels"].items():
        (label,) = (word for word in wheel["command"] if word.startswith("//"))
        kind = "gpu_plugin" if target.endswith("pjrt") else "gpu_kernels"
        expected = r"//jaxlib/tools:jaxlib_wheel" if target == "jaxlib" else rf".*{target.replace('-', '_')}_wheel"
        assert re.fullmatch(rf"{expected}|.*build_{kind}_wheel", label)
        assert {"build", "run"} & set(wheel["command"])


@pytest.mark.parametrize("name", NAMES)
def test_rocm_wheels_use_downloaded_clang_since_0_10_2(name: str) -> None:
    interface = pins.interface_for(pins.releases()[-1] if name == MAIN else name)
    for target, wheel in CONTRACTS[name]["wheels"].items():
        local = any("CLANG_COMPILER_PATH" in word for word in wheel["options"])
        assert local == (target == "jaxlib" or not interface.clang_options)


@pytest.mark.parametrize("name", NAMES)
def test_jax_build_py_copies_wheels_of_other_pythons(name: str) -> None:
    # Upstream copies every wheel of the version that lies in Bazel's output, also from earlier builds.
    for target, wheel in CONTRACTS[name]["wheels"].items():
        if wheel["command"][-1].startswith("//jaxlib/tools"):
            assert len(wheel["copies"]) == (1 if target == "jax-rocm-pjrt" else 2)
