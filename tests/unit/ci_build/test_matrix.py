"""The matrix of builds: every combination once, with a command that requests exactly that combination."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import click.testing
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci_build.build.matrix import Axes, Cell, make_matrix
from ci_build.cli.commands import matrix as command
from ci_build.cli.options.request import build_request
from ci_build.cli.options.settings import Settings, split_list
from core.defaults import defaults
from core.errors import RequestError, UnknownTargetError
from core.model import BuildRequest, Payload, to_json

AXES = Axes(
    pythons=("3.11", "3.12"),
    jax_versions=("0.10.2", "0.11.0"),
    rocm_versions=("7.10.0a20251120", "7.10.0a20251121"),
    families=("gfx94X-dcgpu", "gfx950-dcgpu"),
)


def test_make_matrix_excludes_unsupported_python() -> None:
    cells, excluded = make_matrix(AXES, Payload.SOURCE)
    assert len(cells) == 12
    assert {(cell.python, cell.jax) for cell in cells} == {
        ("3.11", "0.10.2"), ("3.12", "0.10.2"), ("3.12", "0.11.0"),
    }  # fmt: skip
    assert {(item.python, item.jax, item.why) for item in excluded} == {
        ("3.11", "0.11.0", "jax 0.11.0 needs Python >=3.12")
    }


def parsed(cell: Cell) -> BuildRequest:
    """Return the request that the command line parses from a cell's command."""
    words = [word for word in cell.command if word.startswith("--")]
    given = {name.lstrip("-").replace("-", "_"): value for name, _, value in (word.partition("=") for word in words)}
    return build_request(Settings(given, {}, {}))[0]


@pytest.mark.parametrize("payload", Payload)
@pytest.mark.parametrize("join", [False, True])
def test_make_matrix_command_requests_cell(payload: Payload, *, join: bool) -> None:
    cells, _ = make_matrix(replace(AXES, join_pythons=join), payload)
    for cell in cells:
        made = parsed(cell)
        assert (made.payload, made.jax_version, str(made.rocm_version)) == (payload, cell.jax, cell.rocm)
        assert ",".join(made.python_versions) == cell.python
        assert tuple(map(str, made.targets or ())) == cell.targets
        assert f"--out=dist/{cell.name}" in cell.command
    assert len({cell.name for cell in cells}) == len(cells)


def test_make_matrix_joins_pythons() -> None:
    cells, excluded = make_matrix(replace(AXES, join_pythons=True), Payload.SOURCE)
    assert {(cell.jax, cell.python) for cell in cells} == {("0.10.2", "3.11,3.12"), ("0.11.0", "3.12")}
    assert len(cells) == 8
    assert len(excluded) == 4


VALUES = st.lists(st.sampled_from(["3.11", "3.12", "3.13", "3.14"]), min_size=1, unique=True).map(tuple)
RELEASES = st.lists(st.sampled_from(["0.8.2", "0.9.1", "0.10.2", "0.11.0"]), min_size=1, unique=True).map(tuple)


@given(VALUES, RELEASES)
def test_make_matrix_covers_every_combination_once(pythons: tuple[str, ...], releases: tuple[str, ...]) -> None:
    axes = Axes(pythons=pythons, jax_versions=releases, rocm_versions=("7.2.0",), families=("gfx950-dcgpu",))
    if pythons == ("3.11",) and releases == ("0.11.0",):
        with pytest.raises(RequestError, match="Every combination is excluded"):
            make_matrix(axes, Payload.SOURCE)
        return
    cells, excluded = make_matrix(axes, Payload.SOURCE)
    seen = [(cell.python, cell.jax) for cell in cells] + [(item.python, item.jax) for item in excluded]
    assert sorted(seen) == sorted((python, jax) for python in pythons for jax in releases)
    assert make_matrix(axes, Payload.SOURCE) == (cells, excluded)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"pythons": ()}, RequestError, "no pythons"),
        ({"families": ("gfx94X-dcgpu", "gfx94X-dcgpu")}, RequestError, "duplicates: gfx94X-dcgpu"),
        ({"families": ("gfx94X",)}, UnknownTargetError, "gfx94X"),
        ({"rocm_versions": ("newest",)}, RequestError, "not a ROCm version"),
        ({"jax_versions": ("newest",)}, RequestError, "'newest' is not a version of jax"),
        ({"jax_versions": ("0.11.0",), "pythons": ("3.11",)}, RequestError, "Every combination is excluded"),
        ({"jax_versions": ("0.12.0",)}, RequestError, "no pinned sources of jax 0.12.0"),
    ],
)
def test_make_matrix_names_reason_of_exclusion(
    change: dict[str, tuple[str, ...]], error: type[RequestError], text: str
) -> None:
    changed: dict[str, Any] = {**change}
    with pytest.raises(error, match=text):
        make_matrix(replace(AXES, **changed), Payload.SOURCE)


def test_make_matrix_jax_folder_needs_no_pins() -> None:
    cells, _ = make_matrix(replace(AXES, jax_versions=("0.12.0",)), Payload.SOURCE, ("--jax-source-dir=/jax",))
    assert all(cell.command[-1] == "--jax-source-dir=/jax" for cell in cells)


@pytest.mark.parametrize(
    "words",
    [
        ("--rocm-versions=7.10.0a20251120", "--families=gfx94X-dcgpu", "--python-versions=3.12,3.99"),
        ("tests", "SET", "--python-versions=3.12,3.99"),
    ],
    ids=["builds", "tests"],
)
def test_matrix_refuses_unknown_python(words: tuple[str, ...]) -> None:
    with pytest.raises(RequestError, match=r"--python-versions has unsupported versions: 3\.99") as raised:
        command.matrix.main([*words], standalone_mode=False)
    assert "3.11, 3.12" in str(raised.value)


def test_matrix_prints_include_and_excluded() -> None:
    argv = ["--rocm-versions=7.10.0a20251120", "--families=gfx94X-dcgpu", "--python-versions=3.12", "--rbe"]
    done = click.testing.CliRunner().invoke(command.matrix, argv)
    assert done.exit_code == 0, done.output
    printed = json.loads(done.output)
    axes = Axes(
        pythons=("3.12",), jax_versions=split_list(defaults()["build"]["jax_version"]),
        rocm_versions=("7.10.0a20251120",), families=("gfx94X-dcgpu",),
    )  # fmt: skip
    cells, excluded = make_matrix(axes, Payload.SOURCE, ("--rbe",))
    assert printed == to_json({"include": cells, "excluded": excluded})
    assert printed["include"][0]["command"][-1] == "--rbe"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--targts=gfx942", "No such option '--targts'"),
        ("--compiler=icc", "'icc' is not one of"),
        ("dist", "does not accept dist."),
    ],
)
def test_matrix_refuses_arguments_of_no_build(more: str, said: str) -> None:
    argv = ["--rocm-versions=7.10.0a20251120", "--families=gfx94X-dcgpu", "--python-versions=3.12", more]
    done = click.testing.CliRunner().invoke(command.matrix, argv)
    assert isinstance(done.exception, RequestError)
    assert said in str(done.exception)
    assert done.output == ""


def test_split_list() -> None:
    assert split_list(" a, b,,c ") == ("a", "b", "c")
