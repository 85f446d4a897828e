"""The launchers without side effects: refused set-ups, and the validity of `.venv`."""

from __future__ import annotations

import ast
import fcntl
import hashlib
import importlib.util
import json
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import _venv
import pytest

BUILD = Path(__file__).resolve().parents[3] / "build"
LAUNCHERS = ("ci_build", "test", "update_locks")


@pytest.mark.parametrize("name", LAUNCHERS)
@pytest.mark.parametrize("version", [(2, 7, 18), (3, 6, 15), (3, 10, 13)])
def test_an_old_python_is_refused_in_one_line(
    name: str, version: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "version_info", version)
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(BUILD / name), run_name="__main__")
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{name} needs Python 3.11 or newer, this is ")


@pytest.mark.parametrize("name", LAUNCHERS)
def test_launchers_parse_on_old_pythons(name: str) -> None:
    # Real old Pythons run them in tests/integration, where the machine has some.
    source = (BUILD / name).read_text()
    source.encode("ascii")  # Python 2 wants a declaration for anything else.
    modern = (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.Starred, ast.AsyncFunctionDef, ast.Nonlocal, ast.Match)
    nodes = list(ast.walk(ast.parse(source, feature_version=(3, 4))))
    assert not [node for node in nodes if isinstance(node, modern)]
    arguments = [node for node in nodes if isinstance(node, ast.arguments)]
    assert not [node for node in arguments if node.kwonlyargs or node.posonlyargs]
    assert not [node for node in nodes if isinstance(node, ast.arg) and node.annotation]
    prints = [node for node in nodes if isinstance(node, ast.Name) and node.id == "print"]
    assert not prints


@pytest.fixture
def ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up repository whose `.venv` satisfies requirements.lock."""
    monkeypatch.setattr(_venv, "BUILD", tmp_path / "build")
    _place(tmp_path, monkeypatch)
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "requirements.lock").write_text("one==1 --hash=sha256:00\n")
    (tmp_path / "build" / "requirements-dev.lock").write_text("one==1 --hash=sha256:00\ntwo==2 --hash=sha256:00\n")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").write_text("an interpreter")
    (tmp_path / ".venv" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (tmp_path / ".venv" / "lib" / "python3.11" / "site-packages" / "one-1.dist-info").mkdir(parents=True)
    _venv._write_stamp({"requirements.lock": _venv._digest("requirements.lock")})
    assert _venv._satisfies("requirements.lock")
    return tmp_path


def _place(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv = root / ".venv"
    for name, path in {"VENV": venv, "PYTHON": venv / "bin" / "python", "STAMP": venv / "stamp.json"}.items():
        monkeypatch.setattr(_venv, name, path)
    monkeypatch.setattr(_venv, "LOCK_FILE", root / ".venv.lock")
    monkeypatch.setattr(_venv, "SETUP_LOCK_FILE", root / ".venv.setup.lock")


def _replace_python(root: Path) -> None:
    (root / ".venv" / "bin" / "python").write_text("another interpreter")


def _age_stamp(root: Path) -> None:
    stamp = root / ".venv" / "stamp.json"
    stamp.write_text(stamp.read_text().replace('"version": "3.', '"version": "2.'))


BREAKAGES: dict[str, Callable[[Path], object]] = {
    "no stamp": lambda root: (root / ".venv" / "stamp.json").unlink(),
    "an empty stamp": lambda root: (root / ".venv" / "stamp.json").write_text(""),
    "a stamp of another shape": lambda root: (root / ".venv" / "stamp.json").write_text('{"locks": {}}'),
    "a list as stamp": lambda root: (root / ".venv" / "stamp.json").write_text("[]"),
    "another lock": lambda root: (root / "build" / "requirements.lock").write_text("one==2 --hash=sha256:00\n"),
    "no interpreter": lambda root: (root / ".venv" / "bin" / "python").unlink(),
    "another interpreter": _replace_python,
    "another version of Python": _age_stamp,
    "no pyvenv.cfg": lambda root: (root / ".venv" / "pyvenv.cfg").unlink(),
    "a package gone": lambda root: next(root.glob(".venv/lib/*/*/one-1.dist-info")).rmdir(),
}


@pytest.mark.parametrize("name", BREAKAGES)
def test_a_broken_or_outdated_venv_is_not_used(name: str, ready: Path) -> None:
    BREAKAGES[name](ready)
    assert not _venv._satisfies("requirements.lock")


def test_a_moved_folder_is_not_used(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = ready.rename(ready.with_name("moved"))
    _place(moved, monkeypatch)
    monkeypatch.setattr(_venv, "BUILD", moved / "build")
    assert not _venv._satisfies("requirements.lock")


def test_additional_packages_keep_venv_valid(ready: Path) -> None:
    (ready / ".venv" / "lib" / "python3.11" / "site-packages" / "more-1.dist-info").mkdir()
    assert _venv._satisfies("requirements.lock")


def test_developer_lock_is_checked_by_name(ready: Path) -> None:
    assert not _venv._satisfies("requirements-dev.lock")
    _venv._write_stamp({name: _venv._digest(name) for name in _venv.COVERS["requirements-dev.lock"]})
    assert _venv._satisfies("requirements-dev.lock")
    assert _venv._satisfies("requirements.lock")
    (ready / "build" / "requirements-dev.lock").write_text("one==1 --hash=sha256:00\n")
    assert not _venv._satisfies("requirements-dev.lock")
    assert _venv._satisfies("requirements.lock"), "a runtime lock that did not change stays satisfied"


def test_unfinished_addition_recreates_venv(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(_venv, "_create", lambda descriptor: made.append("created"))

    def killed(*arguments: object) -> NoReturn:
        made.append("installing")
        raise KeyboardInterrupt

    monkeypatch.setattr(_venv, "_install", killed)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            _venv._set_up("requirements-dev.lock")
        assert _venv._satisfies("requirements.lock")
        assert not _venv._satisfies("requirements-dev.lock")
    assert made == ["installing", "created", "installing"]


def test_recreated_venv_keeps_developer_tools(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[str] = []
    monkeypatch.setattr(_venv, "_create", lambda descriptors: (ready / ".venv" / "stamp.json").unlink())
    monkeypatch.setattr(_venv, "_install", lambda lock, descriptors, line: installed.append(lock))
    (ready / "build" / "requirements.lock").write_text("one==2 --hash=sha256:00\n")
    _venv._set_up("requirements.lock")
    _venv._write_stamp({name: _venv._digest(name) for name in _venv.COVERS["requirements-dev.lock"]})
    (ready / "build" / "requirements.lock").write_text("one==3 --hash=sha256:00\n")
    _venv._set_up("requirements.lock")
    assert installed == ["requirements.lock", "requirements-dev.lock"]
    assert _venv._satisfies("requirements.lock")
    assert _venv._satisfies("requirements-dev.lock")


def test_a_python_without_ensurepip_is_explained(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(_venv.SetupError, match="apt install python3-venv"):
        _venv._create([])
    assert _venv._satisfies("requirements.lock"), "what was there stays"


def test_setup_errors_have_one_sentence_and_exit_code(
    ready: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(lock: str) -> NoReturn:
        raise _venv.SetupError("pip could not.", "ERROR: words of pip")

    monkeypatch.setattr(sys, "argv", ["build/ci_build"])
    monkeypatch.setattr(_venv, "_set_up", failing)
    (ready / ".venv" / "stamp.json").unlink()
    with pytest.raises(SystemExit) as stopped:
        _venv.enter("requirements.lock")
    assert stopped.value.code == 18
    assert capsys.readouterr().err == "ERROR: words of pip\nci_build: error: pip could not.\n"


def test_interpreter_outside_venv_does_not_loop(
    ready: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", str(ready / ".venv" / "bin" / "python"))
    with pytest.raises(SystemExit) as stopped:
        _venv.enter("requirements.lock")
    assert stopped.value.code == 18
    assert "does not start inside .venv" in capsys.readouterr().err


def test_enter_keeps_command_line(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[object] = []

    def execv(path: Path, argv: list[str]) -> NoReturn:
        called.extend([path, argv])
        raise SystemExit

    monkeypatch.setattr(os, "execv", execv)
    monkeypatch.setattr(sys, "orig_argv", ["python3", "-X", "utf8", "build/ci_build", "release", "a b"])
    with pytest.raises(SystemExit):
        _venv.enter("requirements.lock")
    python = ready / ".venv" / "bin" / "python"
    assert called == [python, [str(python), "-X", "utf8", "build/ci_build", "release", "a b"]]


def test_the_stamp_holds_the_digest_of_the_lock(ready: Path) -> None:
    stamp = json.loads((ready / ".venv" / "stamp.json").read_text())
    lock = (ready / "build" / "requirements.lock").read_bytes()
    assert stamp["locks"] == {"requirements.lock": hashlib.sha256(lock).hexdigest()}
    assert stamp["packages"] == ["one-1.dist-info"]


def test_the_progress_line_is_rewritten_on_a_terminal_and_plain_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def draw() -> str:
        line = _venv._Line("Setting up ...")
        line.show("1 of 2 packages")
        line.end("done in")
        return capsys.readouterr().err

    assert draw() == "Setting up ... done in 0 s\n"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    clear = "\r\033[K"
    assert draw() == f"Setting up ...{clear}Setting up ... 1 of 2 packages{clear}Setting up ... done in 0 s\n"


def test_setup_names_program_that_blocks_it(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_venv, "PATIENCE", 0.2)
    monkeypatch.setattr(_venv, "_digest", lambda lock: "another lock")
    held = _venv._locked(fcntl.LOCK_SH)
    try:
        with pytest.raises(_venv.SetupError, match=r"index serve.*end that program and start again"):
            _venv._set_up("requirements.lock")
    finally:
        os.close(held)
    assert (ready / ".venv" / "stamp.json").exists(), "what the program uses stays"
