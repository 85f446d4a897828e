"""The launchers without side effects: refused set-ups, and the validity of `.venv`."""

from __future__ import annotations

import ast
import fcntl
import importlib.util
import os
import runpy
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

BUILD = Path(__file__).resolve().parents[3] / "build"
LAUNCHERS = ("ci_build", "test", "update_locks")
PIP = "pip-23.0.1-py3-none-any.whl"


@pytest.mark.parametrize("name", LAUNCHERS)
@pytest.mark.parametrize(
    "version",
    [
        (2, 7, 18),
        (3, 10, 13),
    ],
)
def test_an_old_python_is_refused_in_one_line(
    name: str,
    version: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "version_info", version)
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(BUILD / name), run_name="__main__")
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{name} needs Python 3.11 or newer, this is ")


@pytest.mark.parametrize("name", LAUNCHERS)
def test_launchers_parse_on_old_pythons(name: str) -> None:
    source = (BUILD / name).read_text()
    source.encode("ascii")  # Python 2 requires a declaration for other encodings
    ast.parse(source, feature_version=(3, 4))


def load(root: Path) -> Any:
    """Import the copy of `_venv` in a folder."""
    spec = importlib.util.spec_from_file_location(
        "_venv_of_test", root / "build" / "_venv.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a repository whose `.venv` satisfies requirements.lock."""
    root = tmp_path / "repository"
    (root / "build").mkdir(parents=True)
    shutil.copy(BUILD / "_venv.py", root / "build")
    (root / "build" / "requirements.lock").write_text("one==1 --hash=sha256:00\n")
    (root / "build" / "requirements-dev.lock").write_text(
        "one==1 --hash=sha256:00\ntwo==2 --hash=sha256:00\n"
    )
    (root / ".venv" / "bin").mkdir(parents=True)
    (root / ".venv" / "bin" / "python").write_text("an interpreter")
    (root / ".venv" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (root / ".venv" / "lib" / "python3.11" / "site-packages" / "one-1.dist-info").mkdir(
        parents=True
    )
    write_stamp(load(root), "requirements.lock")
    return root


@pytest.fixture
def venv(root: Path) -> Any:
    """Return the module `_venv` of that repository."""
    module = load(root)
    assert module._satisfies("requirements.lock")
    return module


def write_stamp(venv: Any, *locks: str) -> None:
    venv._write_stamp({name: venv._digest(name) for name in locks})


def replace_python(root: Path) -> None:
    (root / ".venv" / "bin" / "python").write_text("another interpreter")


def age_stamp(root: Path) -> None:
    stamp = root / ".venv" / "stamp.json"
    stamp.write_text(stamp.read_text().replace('"version": "3.', '"version": "2.'))


BREAKAGES: dict[str, Callable[[Path], object]] = {
    "no stamp": lambda root: (root / ".venv" / "stamp.json").unlink(),
    "a stamp of another shape": lambda root: (root / ".venv" / "stamp.json").write_text(
        '{"locks": {}}'
    ),
    "another lock": lambda root: (root / "build" / "requirements.lock").write_text(
        "one==2 --hash=sha256:00\n"
    ),
    "no interpreter": lambda root: (root / ".venv" / "bin" / "python").unlink(),
    "another interpreter": replace_python,
    "another version of Python": age_stamp,
    "no pyvenv.cfg": lambda root: (root / ".venv" / "pyvenv.cfg").unlink(),
    "a package gone": lambda root: next(
        root.glob(".venv/lib/*/*/one-1.dist-info")
    ).rmdir(),
}


@pytest.mark.parametrize("name", BREAKAGES)
def test_a_broken_or_outdated_venv_is_not_used(
    name: str, root: Path, venv: Any
) -> None:
    BREAKAGES[name](root)
    assert not venv._satisfies("requirements.lock")


def test_a_moved_folder_is_not_used(root: Path) -> None:
    assert not load(root.rename(root.with_name("moved")))._satisfies(
        "requirements.lock"
    )


def test_developer_lock_is_checked_by_name(root: Path, venv: Any) -> None:
    assert not venv._satisfies("requirements-dev.lock")
    write_stamp(venv, "requirements.lock", "requirements-dev.lock")
    assert venv._satisfies("requirements-dev.lock")
    assert venv._satisfies("requirements.lock")
    (root / "build" / "requirements-dev.lock").write_text("one==1 --hash=sha256:00\n")
    assert not venv._satisfies("requirements-dev.lock")
    assert venv._satisfies("requirements.lock"), (
        "a runtime lock that did not change stays satisfied"
    )


def test_unfinished_addition_recreates_venv(venv: Any) -> None:
    run: list[str] = []

    def killed(problem: str, *program: str, **_: object) -> None:
        run.append(program[1])
        if program[1] == "pip":
            raise KeyboardInterrupt

    venv._run = killed
    venv._add_pip = lambda: run.append("pip of Python")
    for satisfied in (True, False):
        with pytest.raises(KeyboardInterrupt):
            venv._set_up("requirements-dev.lock")
        assert venv._satisfies("requirements.lock") is satisfied
        assert not venv._satisfies("requirements-dev.lock")
    assert run == ["pip", "pip of Python", "pip"], (
        "packages are added first, and .venv is recreated then"
    )


def test_recreated_venv_keeps_developer_tools(root: Path, venv: Any) -> None:
    run: list[str] = []
    venv._run = lambda problem, *program, **_: run.append(Path(program[-1]).name)
    venv._add_pip = lambda: run.append("pip of Python")
    (root / "build" / "requirements.lock").write_text("one==2 --hash=sha256:00\n")
    venv._set_up("requirements.lock")
    write_stamp(venv, "requirements.lock", "requirements-dev.lock")
    (root / "build" / "requirements.lock").write_text("one==3 --hash=sha256:00\n")
    venv._set_up("requirements.lock")
    assert run == [
        "pip of Python",
        "requirements.lock",
        "pip of Python",
        "requirements-dev.lock",
    ]
    assert venv._satisfies("requirements.lock")
    assert venv._satisfies("requirements-dev.lock")


@pytest.mark.parametrize("works", [True, False])
def test_uv_installs_the_lock_and_pip_what_uv_cannot(
    root: Path, venv: Any, works: bool
) -> None:
    run: list[str] = []

    def recorded(problem: str, *program: str, **_: object) -> None:
        run.append(
            " ".join(
                Path(word.rpartition("=")[2]).name
                for word in program
                if "_uv.py" in word or ".lock" in word
            )
        )
        if "_uv.py" in run[-1] and not works:
            raise venv.SetupError("uv failed.")

    venv._run = recorded
    rows = [
        f"{name}==1 \\\n    --hash=sha256:{name}1 \\\n    --hash=sha256:{name}2\n"
        for name in ("one", "packaging", "uv")
    ]
    (root / "build" / "requirements.lock").write_text("# a comment\n" + "".join(rows))
    venv._install("requirements.lock")
    assert run == [
        "first.lock",
        "_uv.py requirements.lock",
        *([] if works else ["requirements.lock"]),
    ]
    assert (venv.VENV / "first.lock").read_text() == "".join(rows[1:]).rstrip()


@pytest.mark.parametrize("place", ["configured", "bundled", "none"])
def test_pip_of_python_is_unpacked_or_installed(
    place: str, venv: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian keeps the wheel in a folder of its configuration (PEP 453).

    A Python may have neither.
    """
    run: list[str] = []
    venv._run = lambda problem, *program, **_: run.append(program[1])
    configured = tmp_path / "wheels"
    bundled = tmp_path / "ensurepip" / "_bundled"
    for folder in (configured, bundled):
        folder.mkdir(parents=True)
    monkeypatch.setattr(
        "sysconfig.get_config_var",
        lambda name: {"WHEEL_PKG_DIR": str(configured)}[name],
    )
    monkeypatch.setattr("ensurepip.__file__", str(bundled.parent / "__init__.py"))
    if place != "none":
        with zipfile.ZipFile(
            tmp_path.joinpath({"configured": configured}.get(place, bundled), PIP), "w"
        ) as archive:
            archive.writestr("pip/__init__.py", f"place = {place!r}")
    venv._add_pip()
    unpacked = [*venv.VENV.glob("lib/*/site-packages/pip/__init__.py")]
    assert [path.read_text() for path in unpacked] == (
        [] if place == "none" else [f"place = {place!r}"]
    )
    assert run == (["ensurepip"] if place == "none" else [])


def test_a_python_without_ensurepip_is_explained(
    venv: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(venv.SetupError, match="apt install python3-venv"):
        venv._create()
    assert venv._satisfies("requirements.lock"), "what was there stays"


def test_interpreter_outside_venv_does_not_loop(
    venv: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", str(venv.PYTHON))
    with pytest.raises(SystemExit) as stopped:
        venv.enter("requirements.lock")
    assert stopped.value.code == 18
    assert "does not start inside .venv" in capsys.readouterr().err


def test_enter_keeps_command_line(venv: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[object] = []

    def execv(path: Path, argv: list[str]) -> NoReturn:
        called.extend([path, argv])
        raise SystemExit

    monkeypatch.setattr(os, "execv", execv)
    monkeypatch.setattr(
        sys, "orig_argv", ["python3", "-X", "utf8", "build/ci_build", "release", "a b"]
    )
    with pytest.raises(SystemExit):
        venv.enter("requirements.lock")
    assert called == [
        venv.PYTHON,
        [str(venv.PYTHON), "-X", "utf8", "build/ci_build", "release", "a b"],
    ]


def test_setup_names_program_that_blocks_it(root: Path, venv: Any) -> None:
    venv.PATIENCE = 0
    (root / "build" / "requirements.lock").write_text("one==2 --hash=sha256:00\n")
    held = venv._locked(venv.LOCK_FILE, fcntl.LOCK_SH)
    try:
        with pytest.raises(
            venv.SetupError, match=r"index serve.*end that program and start again"
        ):
            venv._set_up("requirements.lock")
    finally:
        os.close(held)
    assert (root / ".venv" / "stamp.json").exists(), "what the program uses stays"


@pytest.mark.parametrize(
    ("words", "links"),
    [
        ("gate device set --wheelhouse bundle", "bundle/wheels"),
        ("gate device set --wheelhouse=plain", "plain"),
        ("gate device set", ""),
    ],
)
def test_offline_set_up_uses_the_wheelhouse(
    words: str, links: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bundle" / "wheels").mkdir(parents=True)
    (tmp_path / "plain").mkdir()
    monkeypatch.chdir(tmp_path)
    found = load(BUILD.parent)._offline(["build/ci_build", *words.split()])
    assert found.get("PIP_FIND_LINKS", "") == (str(tmp_path / links) if links else "")
    assert found.get("PIP_NO_INDEX", "") == ("1" if links else "")
