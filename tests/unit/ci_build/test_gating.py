"""Gates on the command line: sets, options and output."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ci_build import cli
from ci_build.cli.common import open_bucket
from ci_build.release import gating
from core.errors import RequestError
from core.report import Reporter
from promotion.gates import gate_table
from promotion.gates.common.gate_context import Gate
from promotion.gates.gate_table import GATES, GateEntry, GateInputs, GateOptions
from promotion.policy.promotion_policy import load_policy
from promotion.storage.directory_bucket import DirBucket
from tests.support.tiny_elf import TinySymbol, tiny_elf
from tests.support.wheel_sets import make_set, make_wheels, write_set

REPORTER = Reporter(terminal=False)


def make_gate(name: str, **options: Any) -> Gate:
    return GATES[name].make(GateOptions(**options), GateInputs())


def test_every_gate_has_policy_and_description() -> None:
    assert set(load_policy("multi-arch").gates) == set(GATES)
    readme = Path(gate_table.__file__).with_name("README.md").read_text()
    described = re.findall(r"^\| `(\w+)` \| ([\w ]+) \|", readme, re.MULTILINE)
    assert described == [(row.name, row.evidence) for row in GATES.values()]


@pytest.mark.parametrize("row", GATES.values(), ids=GATES)
def test_row_of_gate_agrees_with_it(row: GateEntry) -> None:
    gate = make_gate(row.name)
    assert gate.name == row.name
    assert gate.per_target == (row.evidence == "each target")


def test_gate_settings_differ_for_other_options() -> None:
    usual = {name: make_gate(name) for name in GATES}
    full = make_gate("compile", corpus="full")
    one = make_gate("compile", tests=("fft",))
    old = make_gate("install", installers="all")
    for other in (full, one, old):
        assert other.settings != usual[other.name].settings
    assert [gate.partial for gate in (full, one, old)] == [False, True, False]


@pytest.mark.parametrize("name", ["abi", "load", "compile"])
def test_gate_settings_identify_the_rocm(tmp_path: Path, name: str) -> None:
    def settings(folder: str) -> Mapping[str, str]:
        tree = gating.read_rocm(tmp_path / folder, REPORTER)
        return GATES[name].make(GateOptions(), GateInputs(rocm=tree)).settings

    for folder in ("one", "same", "other"):
        (tmp_path / folder / "lib").mkdir(parents=True)
        free = TinySymbol("hipMalloc" if folder == "other" else "hipFree", defined=True)
        tiny_elf(
            tmp_path / folder / "lib/libamdhip64.so.7",
            soname="libamdhip64.so.7",
            symbols=[free],
        )
    before = settings("one")
    assert before == settings("same")
    assert before not in (
        settings("other"),
        make_gate(name).settings,
    )


OPTIONS = {
    "--targets=gfx942": "compile",
    "--rocm=/": "compile",
    "--corpus=full": "compile",
    "--test=fft": "compile",
    "--jobs=1": "compile",
    "--update": "load",
}
"""Option of a gate -> a gate that uses it."""


@pytest.mark.parametrize("option", OPTIONS)
def test_unused_option_of_gate_is_refused(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    unused = f"does not use {option.partition('=')[0]}."
    for name in (OPTIONS[option], "structure", "inspection"):
        assert cli.run(["gate", name, "no set", option]) != 0
        assert (unused in capsys.readouterr().err) == (name == "inspection")


@pytest.mark.parametrize(
    ("channel", "installers", "corpus"),
    [
        ("local", "", ""),
        ("nightly", "all", ""),
        ("release", "all", "full"),
    ],
)
def test_policy_selects_installers_and_corpus(
    channel: str, installers: str, corpus: str
) -> None:
    policy = load_policy("multi-arch", channel=channel)
    chosen = gating.with_policy(GateOptions(), policy)
    assert chosen.installers == installers
    assert chosen.corpus == corpus
    given = GateOptions(installers="newest", corpus="small")
    assert gating.with_policy(given, policy) == given


# Choice of the set


def test_find_set_stages_folder_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheels = make_wheels(tmp_path / "w", pythons=("3.12",))
    wheel_set = make_set(wheels, python_versions=("3.12",))
    folder = write_set(tmp_path / "set", wheels, wheel_set)
    bucket = DirBucket(tmp_path / "bucket")
    staged = gating.find_set(str(folder), bucket, REPORTER)
    assert staged.digest == wheel_set.digest
    assert "stage set" in capsys.readouterr().err
    # Wheels removed from the folder do not matter, because gates use the staged ones.
    for wheel in folder.glob("*.whl"):
        wheel.unlink()
    assert gating.find_set(str(folder), bucket, REPORTER) == staged
    assert gating.find_set(str(staged), bucket, REPORTER) == staged
    assert capsys.readouterr().err == ""


def test_find_set_refuses_folder_without_set(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"has no wheels\.json"):
        gating.find_set(str(tmp_path), DirBucket(tmp_path), REPORTER)
    with pytest.raises(RequestError, match="does not exist"):
        open_bucket(str(tmp_path / "nowhere"), REPORTER)
