"""The matrix of builds.

Every combination once, with a command that requests exactly that combination.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from itertools import chain, product
from typing import Any

import click.testing
import pytest

from ci_build.cli.commands import matrix as command
from ci_build.cli.options.request_conversion import build_request
from ci_build.cli.options.settings import Settings
from ci_build.wheelset.ci_matrix import Axes, Cell, make_matrix
from core.errors import RequestError
from core.model import BuildRequest, Payload
from core.rocm_releases import load_releases
from core.targets import lists

AXES = Axes(
    pythons=("3.11", "3.12"),
    jax_versions=("0.10.2", "0.11.0"),
    rocm_versions=("7.10.0a20251120", "7.10.0a20251121"),
    families=("gfx94X-dcgpu", "gfx950-dcgpu"),
)


def test_make_matrix_excludes_unsupported_python() -> None:
    cells, excluded = make_matrix(AXES, Payload.SOURCE)
    assert {(cell.jax, cell.pythons) for cell in cells} == {
        ("0.10.2", ("3.11", "3.12")),
        ("0.11.0", ("3.12",)),
    }
    assert len(cells) == 8
    assert {(item.python, item.jax, item.why) for item in excluded} == {
        ("3.11", "0.11.0", "jax 0.11.0 needs Python >=3.12")
    }


def parsed(cell: Cell) -> BuildRequest:
    """Return the request that the command line parses from a cell's command."""
    words = [word for word in cell.command if word.startswith("--")]
    given = {}
    for name, _, value in (word.partition("=") for word in words):
        given[name.lstrip("-").replace("-", "_")] = value
    return build_request(Settings(given))[0]


@pytest.mark.parametrize("payload", Payload)
def test_make_matrix_command_requests_cell(payload: Payload) -> None:
    cells, _ = make_matrix(AXES, payload)
    for cell in cells:
        made = parsed(cell)
        assert made.payload == payload
        assert made.jax_version == cell.jax
        assert str(made.rocm_version) == cell.rocm
        assert made.python_versions == cell.pythons
        assert shlex.split(cell.run) == [*cell.command]
        assert tuple(map(str, made.targets or ())) == cell.targets
        assert f"--out={cell.out}" in cell.command
        assert cell.out == f"dist/{cell.name}"
    assert len({cell.name for cell in cells}) == len(cells)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"families": ("gfx94X-dcgpu",) * 2}, "duplicates: gfx94X-dcgpu"),
        ({"families": ()}, "has no families"),
        ({"jax_versions": ("newest",)}, "'newest' is not a version of jax"),
        (
            {"jax_versions": ("0.11.0",), "pythons": ("3.11",)},
            "Every combination is excluded",
        ),
        ({"jax_versions": ("0.99.0",)}, "no pinned sources of jax 0.99.0"),
    ],
)
def test_make_matrix_names_reason_of_exclusion(
    change: dict[str, Any], text: str
) -> None:
    with pytest.raises(RequestError, match=text):
        make_matrix(replace(AXES, **change), Payload.SOURCE)


def test_make_matrix_jax_folder_needs_no_pins() -> None:
    cells, _ = make_matrix(
        replace(AXES, jax_versions=("0.12.0",)),
        Payload.SOURCE,
        ("--jax-source-dir=/jax",),
    )
    assert all(cell.command[-1] == "--jax-source-dir=/jax" for cell in cells)


def test_matrix_refuses_arguments_of_no_build() -> None:
    argv = [
        "--rocm-version=7.10.0a20251120",
        "--family=gfx94X-dcgpu",
        "--targts=gfx942",
    ]
    done = click.testing.CliRunner().invoke(command.matrix, argv)
    assert isinstance(done.exception, RequestError)
    assert "No such option '--targts'" in str(done.exception)


def printed_lines(*argv: str) -> dict[str, Any]:
    """Return the outputs of a step that GitHub Actions reads from its file.

    One line `name=value` for each.
    """
    done = click.testing.CliRunner().invoke(command.matrix, argv)
    assert done.exit_code == 0, done.output
    rows = [line.partition("=") for line in done.output.splitlines()]
    assert all(name.isidentifier() for name, _, _ in rows)
    return {name: json.loads(value) for name, _, value in rows}


def test_matrix_of_published_wheels_needs_no_option() -> None:
    """The CI services give only the payload.

    The families are those that must pass tests on GPUs.
    """
    rows = printed_lines("--payload=published", "--jax-version=0.10.2,0.9.1")["matrix"][
        "include"
    ]
    assert [(row["jax"], row["rocm"], row["family"]) for row in rows] == [
        (jax, load_releases().published[jax], family)
        for jax, family in product(
            ("0.10.2", "0.9.1"), ("gfx94X-dcgpu", "gfx950-dcgpu")
        )
    ]
    assert set(chain.from_iterable(row["targets"] for row in rows)) == {
        *lists()["gated"]
    }


def test_matrix_prints_outputs_of_github_actions() -> None:
    argv = (
        "--rocm-version=7.2.0",
        "--family=gfx94X-dcgpu,gfx950-dcgpu",
        "--jax-version=0.11.0",
    )
    outputs = printed_lines(*argv)
    done = click.testing.CliRunner().invoke(command.matrix, [*argv, "--json"])
    assert outputs["matrix"] == {"include": json.loads(done.output)["include"]}
    assert outputs["matrix_count"] == 2
    assert {item["python"] for item in outputs["excluded"]} == {"3.11"}


def test_matrix_refuses_more_jobs_than_github_allows() -> None:
    versions = ",".join(
        f"7.{minor}.{patch}" for minor, patch in product(range(20), range(13))
    )
    argv = [f"--rocm-version={versions}", "--family=gfx942", "--payload=published"]
    done = click.testing.CliRunner().invoke(command.matrix, argv)
    assert isinstance(done.exception, RequestError)
    assert "The matrix has 260 jobs; GitHub Actions allows 256." in str(done.exception)


@pytest.mark.parametrize(
    ("rocm", "more", "listed"),
    [
        ("7.12.0a20261101", (), False),
        ("7.2.0", ("--therock-listing=https://host/releases/",), True),
    ],
)
def test_matrix_takes_rocm_from_packages_without_listing(
    rocm: str, more: tuple[str, ...], listed: bool
) -> None:
    argv = [f"--rocm-version={rocm}", "--family=gfx942", "--json", *more]
    done = click.testing.CliRunner().invoke(command.matrix, argv)
    (job,) = json.loads(done.output)["include"]
    assert (f"--therock={rocm}" in job["run"]) == listed
    assert f"--rocm-version={rocm}" in job["run"]
