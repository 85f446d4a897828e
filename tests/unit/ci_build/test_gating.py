"""Gates on the command line: sets, options and output."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from ci_build.cli.common import open_bucket
from ci_build.release import gating
from ci_build.release.gating import GateOptions
from ci_build.release.release_request import GATES
from core.errors import RequestError
from core.report import Reporter
from promotion.policy.promotion_policy import load_policy
from promotion.storage.directory_bucket import DirBucket
from tests.support.tiny_elf import TinySymbol, tiny_elf
from tests.support.wheel_sets import make_set, make_wheels, write_set

REPORTER = Reporter(terminal=False)


def test_structure_names_every_gate_of_the_policy() -> None:
    assert set(load_policy("multi-arch").gates) == set(GATES)


def test_gate_settings_differ_for_other_options() -> None:
    usual = {name: gating.make_gate(name, GateOptions()) for name in GATES}
    full = gating.make_gate("compile", GateOptions(corpus="full"))
    one = gating.make_gate("compile", GateOptions(program=("fft",)))
    old = gating.make_gate("install", GateOptions(installers="all"))
    for other in (full, one, old):
        assert other.settings != usual[other.name].settings
    assert [gate.partial for gate in (full, one, old)] == [False, True, False]


@pytest.mark.parametrize("name", ["abi", "load", "compile"])
def test_gate_settings_identify_the_rocm(tmp_path: Path, name: str) -> None:
    def settings(folder: str) -> Mapping[str, str]:
        return gating.make_gate(
            name, GateOptions(), gating.read_rocm(tmp_path / folder, REPORTER)
        ).settings

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
        gating.make_gate(name, GateOptions()).settings,
    )


VALUES = {
    "targets": "gfx942",
    "rocm": Path("/opt/rocm"),
    "corpus": "full",
    "program": ("fft",),
    "jobs": 1,
    "installers": "all",
    "update_golden": True,
}


@pytest.mark.parametrize("option", VALUES)
def test_unused_option_of_gate_is_refused(option: str) -> None:
    told = GateOptions(**{option: VALUES[option]})  # type: ignore[arg-type]
    gating.check_gate_options("structure", told)
    with pytest.raises(
        RequestError, match=f"inspection does not use --{option.replace('_', '-')}\\."
    ):
        gating.check_gate_options("inspection", told)
    user = {"update_golden": "load", "installers": "install"}.get(option, "compile")
    gating.check_gate_options(user, told)


@pytest.mark.parametrize(
    ("channel", "installers", "corpus"),
    [("local", "", ""), ("nightly", "all", ""), ("release", "all", "full")],
)
def test_policy_selects_installers_and_corpus(
    channel: str, installers: str, corpus: str
) -> None:
    policy = load_policy("multi-arch", channel=channel)
    chosen = gating.with_policy(GateOptions(), policy)
    assert (chosen.installers, chosen.corpus) == (installers, corpus)
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
    for text in (str(staged), str(staged)[:-58]):
        assert gating.find_set(text, bucket, REPORTER) == staged
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("empty", r"empty has no wheels\.json"),
        ("nonsense", "'nonsense' is not a staged set"),
        ("multi-arch/x", "'multi-arch/x' is not the name of a set"),
    ],
)
def test_find_set_refuses_other_input(
    word: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "bucket").mkdir()
    with pytest.raises(RequestError, match=message):
        gating.find_set(word, DirBucket(tmp_path / "bucket"), REPORTER)
    with pytest.raises(RequestError, match="does not exist"):
        open_bucket(str(tmp_path / "nowhere"), REPORTER)
