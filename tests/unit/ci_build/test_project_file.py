"""The project file: where it is found, what it may set, and what overrides it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ci_build.cli import run
from ci_build.cli.commands.dist_wheels import dist_wheels
from ci_build.cli.commands.gate import gate
from ci_build.cli.common import project_defaults
from ci_build.cli.options.project_file import ProjectFile, find_project_file
from ci_build.cli.options.settings import Setting, Settings, origins
from core.errors import FormatError, UnknownTargetError

PUBLISHED = ("dist_wheels", "--payload=published", "--dry-run")


def write(folder: Path, text: str, name: str = "ci_build.toml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def test_nearest_file_counts_and_ci_build_toml_comes_first(tmp_path: Path) -> None:
    far = tmp_path / "far"
    near = tmp_path / "far" / "near"
    path = write(far, "[tool.ci_build]\njax-version = '0.12.0'\n", "pyproject.toml")
    write(near / "x", "[tool.other]\n", "pyproject.toml")
    assert find_project_file(near / "x") == ProjectFile(
        path=path, values={"jax_version": "0.12.0"}
    )
    path = write(far, "jax_version = '0.10.2'\n")
    assert find_project_file(near / "x").path == path
    path = write(near, "")
    assert find_project_file(near) == ProjectFile(path=path)
    assert find_project_file(tmp_path) == ProjectFile()


def test_values_have_the_form_of_the_command_line(tmp_path: Path) -> None:
    text = """
        targets = ["gfx942", "gfx950"]
        wheel-post-release = 3
        kernels = true
        out = "dist"
        find-links = ["wheels", "https://wheels.example/x/"]
        therock-path = "https://rocm.example/a.tar.gz"
        bucket = "s3://wheels/nightly"
        cluster-store = "store"
        aiter-source = "sdist"
    """
    path = write(tmp_path, text)
    assert find_project_file(tmp_path).values == {
        "targets": "gfx942,gfx950",
        "wheel_post_release": "3",
        "kernels": True,
        "out": str(path.parent / "dist"),
        "find_links": f"{path.parent / 'wheels'},https://wheels.example/x/",
        "therock_path": "https://rocm.example/a.tar.gz",
        "bucket": "s3://wheels/nightly",
        "cluster_store": str(path.parent / "store"),
        "aiter_source": "sdist",
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("targts = 'gfx942'", "targts: unknown key (did you mean 'targets'?)"),
        ("signing-key = 'x'", "unknown key (a secret; use CI_BUILD_SIGNING_KEY)"),
        ("jax-version = '1'\njax_version = '2'", "jax_version: the key is given twice"),
        ("kernels = 'yes'", "{path}: kernels: expected true or false."),
        ("targets = true", "{path}: targets: expected text."),
        ("targets = 1.5", "{path}: targets: "),
        ("targets", "{path} is not TOML"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(FormatError, match=re.escape(problem.format(path=path))):
        find_project_file(tmp_path)


def test_tool_table_of_another_type_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "[tool]\nci_build = 1\n", "pyproject.toml")
    with pytest.raises(FormatError, match=r"pyproject.toml: "):
        find_project_file(tmp_path)


def test_environment_and_command_line_override_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {
        "targets": "gfx942",
        "compiler": "gcc",
        "out": "o",
    }
    project = ProjectFile(path=tmp_path / "ci_build.toml", values=values)
    monkeypatch.setenv("CI_BUILD_COMPILER", "clang")
    defaults = project_defaults(dist_wheels, project)
    context = dist_wheels.make_context(
        "dist_wheels", ["--out=here"], default_map=defaults
    )
    settings = Settings(context.params, origins(context, "ci_build.toml"))
    assert settings.get("out") == Setting(value="here", origin="--out")
    assert settings.get("compiler") == Setting(
        value="clang", origin="CI_BUILD_COMPILER"
    )
    assert settings.get("targets") == Setting(
        value="gfx942", origin="targets in ci_build.toml"
    )
    assert settings.get("xla").origin == "defaults.toml [build]"
    assert settings.get("therock_path") == Setting(value=None, origin="not given")
    assert settings.given("targets") is True
    assert settings.typed("targets") is False


def test_file_sets_only_options_with_a_variable(tmp_path: Path) -> None:
    """`--targets` of a gate is not the one of a build."""
    project = ProjectFile(path=tmp_path / "ci_build.toml", values={"targets": "gfx942"})
    assert project_defaults(gate, project) == {}


def test_commands_read_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(
        tmp_path,
        f"targets = 'gfx950'\ncache-dir = '{tmp_path / 'cache'}'\njax-version = '0.12.0'\n",
    )
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert run([*PUBLISHED]) == 0
    assert "for gfx950, index" in capsys.readouterr().out
    write(tmp_path, "targets = 'gfx9999'")
    assert run([*PUBLISHED]) == UnknownTargetError.exit_code
    assert "gfx9999" in capsys.readouterr().err


def test_commands_of_groups_read_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """click reads the options that are not in the table.

    Their values are defaults of every command.
    """
    write(tmp_path, "bucket = 'my-bucket'\nchannel = 'nightly'\n")
    monkeypatch.chdir(tmp_path)
    run(["index", "verify", "multi-arch"])
    assert str(tmp_path / "my-bucket") in capsys.readouterr().err
    monkeypatch.setenv("CI_BUILD_BUCKET", str(tmp_path / "other"))
    run(["index", "verify", "multi-arch"])
    assert str(tmp_path / "other") in capsys.readouterr().err
