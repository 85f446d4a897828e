"""The launchers with real venvs, a real pip and a package from pip's configuration."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.machine import until
from tests.support.made_packages import make_wheel

ROOT = Path(__file__).resolve().parents[3]
LOCKS = [f"requirements{name}.lock" for name in ("", "-cluster", "-dev", "-attest")]
CLI = """
import json, os, sys
if __name__ == "__main__":
    import stand_in
    words = sys.argv[1:]
    if words[:1] == ["exit"]:
        sys.exit(int(words[1]))
    if words[:1] == ["die"]:
        os.kill(os.getpid(), int(words[1]))
    print(json.dumps({
        "prefix": sys.prefix, "argv": sys.argv, "cwd": os.getcwd(), "pid": os.getpid(), "version": stand_in.VERSION,
        "flags": sys.flags.utf8_mode, "env": sorted(n for n in os.environ if n.startswith("PYTHON")),
    }), flush=True)
    if words[:1] == ["wait"]:
        sys.stdin.read()
"""


class Tree:
    """A copy of the launchers with its own lock, in a folder with a space in its name."""

    def __init__(self, root: Path, wheels: Path) -> None:
        self.root = root
        self.wheels = wheels
        shutil.copytree(
            ROOT / "build", root / "build", ignore=shutil.ignore_patterns("__pycache__")
        )
        for package, module in (("ci_build", "cli"), ("tests", "__main__")):
            (root / package).mkdir()
            (root / package / "__init__.py").touch()
            (root / package / f"{module}.py").write_text(CLI)
        self.lock("requirements.lock", "stand-in==1")
        self.lock("requirements-dev.lock", "stand-in==1", "stand-in-more==1")
        # pip reads a user's settings from the environment or a file; these settings
        # locate the only copy.
        self.env = {
            **os.environ,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(wheels),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def lock(
        self,
        name: str,
        *pins: str,
        digest: str = "",
    ) -> None:
        """Write a lock file; the digests are correct unless another one is given."""
        lines = []
        for pin in pins:
            project, version = pin.split("==")
            wheel = (
                self.wheels
                / f"{project.replace('-', '_')}-{version}-py3-none-linux_x86_64.whl"
            )
            true = hashlib.sha256(wheel.read_bytes()).hexdigest()
            lines.append(f"{pin} --hash=sha256:{digest or true}\n")
        (self.root / "build" / name).write_text("".join(lines))

    def start(
        self,
        *words: str,
        launcher: str = "ci_build",
        python: Path | str = sys.executable,
        env: Mapping[str, str] = {},
    ) -> subprocess.Popen[str]:
        """Start a launcher from some other directory."""
        argv = [str(python), str(self.root / "build" / launcher), *words]
        pipe = subprocess.PIPE
        cwd = self.root.parent
        return subprocess.Popen(
            argv,
            cwd=cwd,
            env={**self.env, **env},
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
        )

    def run(
        self,
        *words: str,
        launcher: str = "ci_build",
        python: Path | str = sys.executable,
        env: Mapping[str, str] = {},
    ) -> subprocess.CompletedProcess[str]:
        """Run a launcher until it ends."""
        process = self.start(*words, launcher=launcher, python=python, env=env)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    @property
    def inode(self) -> int:
        """Return the inode of `.venv`, which changes when it is recreated."""
        return (self.root / ".venv" / "pyvenv.cfg").stat().st_ino


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with three tiny wheels."""
    folder = tmp_path_factory.mktemp("wheels")
    for project, version in (
        ("stand_in", "1"),
        ("stand_in", "2"),
        ("stand_in_more", "1"),
    ):
        module = f"VERSION = {version}\n".encode()
        filename, data = make_wheel(
            project, version, {f"{project}.py": (module, 0o644)}
        )
        (folder / filename).write_bytes(data)
    return folder


@pytest.fixture
def tree(tmp_path: Path, wheels: Path) -> Tree:
    """Return a fresh clone with the files that the launchers use."""
    root = tmp_path / "a clone"
    root.mkdir()
    return Tree(root, wheels)


@pytest.fixture(scope="module")
def _made(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> Tree:
    root = tmp_path_factory.mktemp("made") / "a clone"
    root.mkdir()
    tree = Tree(root, wheels)
    done = tree.run()
    assert done.returncode == 0, done.stderr
    return tree


@pytest.fixture
def made(_made: Tree) -> Iterator[Tree]:
    """Return a tree after its set-up; tests that share it do not change `.venv`."""
    before = _made.inode
    yield _made
    assert _made.inode == before


def said(done: subprocess.CompletedProcess[str]) -> dict[str, object]:
    """Return the output of the stand-in program."""
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert isinstance(answer, dict)
    return answer


def test_first_start_creates_venv_with_one_line(tree: Tree) -> None:
    first = tree.run("x")
    second = tree.run("x")
    (line,) = first.stderr.splitlines()
    assert line.startswith("Setting up .venv from build/requirements.lock ... done in ")
    assert second.stderr == ""
    for done in (first, second):
        answer = said(done)
        assert answer["prefix"] == str(tree.root / ".venv")
        assert answer["version"] == 1


@pytest.mark.parametrize(
    "env", [{"PYTHONSAFEPATH": "1"}, {"PYTHONPATH": "elsewhere"}, {"PYTHONPATH": ""}]
)
def test_user_directory_does_not_shadow_modules(
    made: Tree, env: dict[str, str]
) -> None:
    trap = made.root.parent / "stand_in.py"
    trap.write_text("raise SystemExit('the wrong stand_in')\n")
    try:
        assert said(made.run(env=env))["version"] == 1
    finally:
        trap.unlink()


def test_launcher_keeps_exit_code_signal_and_pid(made: Tree) -> None:
    assert made.run("exit", "7").returncode == 7
    assert made.run("die", str(int(signal.SIGTERM))).returncode == -signal.SIGTERM
    process = made.start()
    out, _ = process.communicate(timeout=60)
    assert json.loads(out)["pid"] == process.pid


def test_concurrent_starts_share_one_setup(tree: Tree) -> None:
    both = [tree.start(), tree.start()]
    ends = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], ends
    words = "".join(err for _, err in ends)
    assert words.count("Setting up .venv") == 1
    assert words.count("Waiting for another process") >= 1


def test_killed_setup_is_repeated(tree: Tree) -> None:
    process = tree.start()
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    until(lambda: bool(children.read_text()))  # pip runs
    process.kill()
    process.communicate()
    with (tree.root / ".venv.lock").open() as file, pytest.raises(BlockingIOError):
        fcntl.flock(
            file, fcntl.LOCK_EX | fcntl.LOCK_NB
        )  # the orphan that still writes locks the others out
    done = tree.run()
    assert "Waiting for another process" in done.stderr
    assert "Setting up .venv" in done.stderr
    assert said(done)["version"] == 1


def test_changed_lock_recreates_idle_venv(tree: Tree) -> None:
    running = tree.start("wait")
    assert running.stdout is not None
    assert json.loads(running.stdout.readline())["version"] == 1
    before = tree.inode
    tree.lock("requirements.lock", "stand-in==2")
    late = tree.start()
    assert late.stderr is not None
    assert late.stderr.readline().startswith("Waiting for another process")
    assert tree.inode == before
    running.communicate(timeout=60)
    out, err = late.communicate(timeout=120)
    assert late.returncode == 0, err
    assert json.loads(out)["version"] == 2


def test_the_tests_launcher_adds_to_the_same_venv(tree: Tree) -> None:
    assert said(tree.run())["version"] == 1
    before = tree.inode
    done = tree.run(launcher="test")
    assert done.stderr.startswith(
        "Setting up .venv from build/requirements-dev.lock ... done"
    )
    assert said(done)["argv"] == [str(tree.root / "build" / "test")]
    assert any(tree.root.glob(".venv/lib/python*/site-packages/stand_in_more.py"))
    assert tree.run().stderr == ""
    assert tree.inode == before


def test_wrong_hash_is_refused_with_pip_output(tree: Tree) -> None:
    tree.lock("requirements.lock", "stand-in==1", digest="0" * 64)
    done = tree.run()
    assert done.returncode == 18
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in done.stderr
    assert done.stderr.splitlines()[-1].startswith(
        "ci_build: error: pip could not install build/requirements.lock"
    )
    assert "Traceback" not in done.stderr
    tree.lock("requirements.lock", "stand-in==1")
    assert said(tree.run())["version"] == 1


@pytest.fixture(scope="module")
def real(
    tmp_path_factory: pytest.TempPathFactory, wheels: Path
) -> tuple[Tree, subprocess.CompletedProcess[str]]:
    """Return this repository's files for launchers, and the first start's output."""
    tree = Tree(tmp_path_factory.mktemp("real"), wheels)
    shutil.rmtree(tree.root / "ci_build")
    unwanted = shutil.ignore_patterns("__pycache__")
    for package in (
        "ci_build",
        "core",
        "kernels",
        "pjrt",
        "plugin",
        "promotion",
        "wheelkit",
    ):
        shutil.copytree(ROOT / package, tree.root / package, ignore=unwanted)
    for path in (ROOT / "build").glob("requirements*"):
        shutil.copy(path, tree.root / "build" / path.name)
    tree.env = dict(os.environ)
    first = tree.run("--help")
    assert first.returncode == 0, first.stderr
    return tree, first


@pytest.mark.network
def test_update_locks_keeps_what_is_pinned(
    real: tuple[Tree, subprocess.CompletedProcess[str]],
) -> None:
    """This must be the last test of the tree, because it may change the locks."""
    tree, _ = real
    (tree.root / "tests" / "support" / "rbe").mkdir(parents=True)
    for path in (ROOT / "tests" / "support" / "rbe").glob("requirements*"):
        shutil.copy(path, tree.root / "tests" / "support" / "rbe" / path.name)
    done = tree.run(launcher="update_locks")
    if "Failed to fetch" in done.stderr:
        pytest.skip(
            f"package index not reachable for uv: {done.stderr.splitlines()[-1]}"
        )
    assert done.returncode == 0, done.stderr
    for name in (*LOCKS, "installers/pip-22.3.lock"):
        # An index may have added files of a version since; only the versions must be
        # equal.
        new, old = (
            re.findall(
                r"^(?:\S+==.*|#.*)", (root / "build" / name).read_text(), re.MULTILINE
            )
            for root in (tree.root, ROOT)
        )
        assert new == old


def test_pip_says_that_the_clone_is_run(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "pip", "install", f"--target={tmp_path}", str(ROOT)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "run from its clone: `python3 build/ci_build --help`" in said
    assert [*tmp_path.iterdir()] == []
