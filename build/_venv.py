"""Set-up of `.venv` from a hash lock with the standard library alone, and the start of programs inside it."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import runpy
import shutil
import subprocess
import sys
import time
import venv
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

BUILD = Path(__file__).resolve().parent
ROOT = BUILD.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "stamp.json"
LOCK_FILE = ROOT / ".venv.lock"
"""Shared lock of programs that run from `.venv`; exclusive while it is recreated."""
SETUP_LOCK_FILE = ROOT / ".venv.setup.lock"
"""Exclusive lock of a set-up."""
PATIENCE = 60.0
"""Seconds to wait for programs that run from a `.venv` which must be recreated."""
COVERS = {
    "requirements.lock": ("requirements.lock",),
    "requirements-dev.lock": ("requirements-dev.lock", "requirements.lock"),
}
"""Lock -> locks that its installation satisfies; the developer lock holds the other one in the same versions."""
EXIT_MACHINE = 18
"""Exit code of core.errors.MachineError, which may not be importable yet."""
EXIT_INTERRUPTED = 130


class SetupError(Exception):
    """Error of a set-up; `output` holds the last lines of the failed program."""

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


def launch(module: str, lock: str, bare: Mapping[str, str] = MappingProxyType({})) -> None:
    """Run `module` as the main program inside `.venv`, with the repository on sys.path and the user's directory kept.

    Args:
        module: name of a module that runs when its `__name__` is "__main__", or of a package with such a one.
        lock: name of the lock file, beside this one, that `.venv` must satisfy.
        bare: first argument -> module that runs instead, at once and in the present Python: it needs no `.venv`.
    """
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command in bare:
        module = bare[command]
        del sys.argv[1]
    else:
        enter(lock)
    sys.path[:] = [str(ROOT), *(entry for entry in sys.path if entry != str(BUILD))]
    runpy.run_module(module, run_name="__main__")


def enter(lock: str) -> None:
    """Return inside `.venv`, created or updated if necessary; replaces the process if it was started outside.

    The process holds a shared lock on `.venv` for the rest of its life, so that no other process recreates it.
    """
    program = Path(sys.argv[0]).name
    try:
        inside = VENV.exists() and VENV.samefile(sys.prefix)
        if inside and _hold(lock):
            return
        if not _satisfies(lock):
            _set_up(lock)
        elif not inside and sys.executable == str(PYTHON):
            raise SetupError(f"{PYTHON} does not start inside .venv; remove the folder {VENV} and start again.")
        # The same program once more, interpreter options included, with the right interpreter.
        os.execv(PYTHON, [str(PYTHON), *sys.orig_argv[1:]])  # noqa: S606
    except SetupError as error:
        print(error.output, f"{program}: error: {error}", sep="\n" if error.output else "", file=sys.stderr)
        sys.exit(EXIT_MACHINE)
    except OSError as error:
        print(f"{program}: error: .venv cannot be used or set up: {error}.", file=sys.stderr)
        sys.exit(EXIT_MACHINE)
    except KeyboardInterrupt:
        print(f"{program}: interrupted; the next start sets up .venv.", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)


# Locking: exclusive during a set-up, shared while programs run


def _hold(lock: str) -> bool:
    # The descriptor stays open: the kernel releases the lock when this process ends.
    descriptor = _locked(fcntl.LOCK_SH)
    if _satisfies(lock):
        return True
    os.close(descriptor)
    return False


def _locked(kind: int, path: Path | None = None, patience: float | None = None) -> int:
    descriptor = os.open(path or LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
    began = time.monotonic()
    waiting = False
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if not waiting:
                print("Waiting for another start, which sets up or uses .venv ...", file=sys.stderr, flush=True)
            waiting = True
        else:
            return descriptor
        if patience is not None and time.monotonic() - began > patience:
            os.close(descriptor)
            raise SetupError(
                ".venv must be recreated, but a program that runs from it (such as `index serve`) keeps it in use; "
                "end that program and start again."
            )
        time.sleep(0.1)


# The stamp records the content of `.venv`; it is written last and read before every use


def _satisfies(lock: str) -> bool:
    stamp = _stamp()
    return stamp.get("locks", {}).get(lock) == _digest(lock) and _usable(stamp)


def _usable(stamp: dict[str, Any]) -> bool:
    return bool(stamp) and stamp["made"] == _fingerprint() and set(stamp["packages"]) <= set(_packages())


def _stamp() -> dict[str, Any]:
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) and stamp.keys() == {"made", "packages", "locks"} else {}


def _write_stamp(locks: dict[str, str]) -> None:
    part = STAMP.with_suffix(".part")
    part.write_text(json.dumps({"made": _fingerprint(), "packages": _packages(), "locks": locks}, indent=2))
    part.replace(STAMP)


def _fingerprint() -> dict[str, Any]:
    # A moved folder and a replaced or removed Python each invalidate `.venv`.
    try:
        config, found = (VENV / "pyvenv.cfg").read_text(), PYTHON.stat()
    except OSError:
        return {}
    python = {"path": os.path.realpath(PYTHON), "size": found.st_size, "mtime": int(found.st_mtime)}
    return {"venv": str(VENV), "version": "{}.{}".format(*sys.version_info[:2]), "python": python, "config": config}


def _packages() -> list[str]:
    return sorted(path.name for path in VENV.glob("lib/python*/site-packages/*.dist-info"))


def _digest(lock: str) -> str:
    return hashlib.sha256((BUILD / lock).read_bytes()).hexdigest()


# Setting up


class _Line:
    """The progress line: its end is rewritten on a terminal; elsewhere it is printed once."""

    def __init__(self, text: str) -> None:
        self.text, self.began = text, time.monotonic()
        self._write(text)

    def show(self, state: str) -> None:
        if sys.stderr.isatty():
            self._write(f"\r\033[K{self.text} {state}")

    def end(self, state: str) -> None:
        seconds = time.monotonic() - self.began
        self._write((f"\r\033[K{self.text}" if sys.stderr.isatty() else "") + f" {state} {seconds:.0f} s\n")

    def _write(self, text: str) -> None:
        print(text, end="", file=sys.stderr, flush=True)


def _set_up(lock: str) -> None:
    descriptors = [_locked(fcntl.LOCK_EX, SETUP_LOCK_FILE)]
    try:
        if _satisfies(lock):
            return  # Another process did it meanwhile.
        lock = _widest_lock(lock)
        # Adding packages does not affect programs that run from `.venv`; recreating it does.
        if not _only_adds(lock):
            descriptors.append(_locked(fcntl.LOCK_EX, patience=PATIENCE))
        line = _Line(f"Setting up .venv from build/{lock} ...")
        try:
            _make(lock, descriptors, line)
        except BaseException:
            line.end("stopped after")
            raise
        line.end("done in")
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _widest_lock(lock: str) -> str:
    # `ci_build` must not remove the developer tools from a `.venv` that it recreates.
    had = _stamp().get("locks", {})
    return next(
        (wider for wider, covered in COVERS.items() if wider in had and lock in covered and wider != lock), lock
    )


def _only_adds(lock: str) -> bool:
    stamp = _stamp()
    locks = stamp["locks"] if stamp and _usable(stamp) else {}
    others = [name for name in COVERS[lock] if name != lock]
    return bool(others) and lock not in locks and all(locks.get(name) == _digest(name) for name in others)


def _make(lock: str, descriptors: list[int], line: _Line) -> None:
    if _only_adds(lock):
        # The installed packages stay valid while more are added; a killed set-up leaves a digest that matches nothing.
        _write_stamp({**_stamp()["locks"], lock: "unfinished"})
    else:
        _create(descriptors)
    _install(lock, descriptors, line)
    _write_stamp({name: _digest(name) for name in COVERS[lock]})


def _create(descriptors: list[int]) -> None:
    if importlib.util.find_spec("ensurepip") is None:
        raise SetupError(
            f"{sys.executable} cannot make virtual environments: run `apt install python3-venv` (Debian, Ubuntu), "
            "or start this with another Python, such as one that `uv python install` brings."
        )
    STAMP.unlink(missing_ok=True)
    if VENV.is_symlink() or VENV.is_file():
        VENV.unlink()
    elif VENV.exists():
        shutil.rmtree(VENV)
    venv.EnvBuilder(symlinks=True).create(VENV)
    _run(["ensurepip"], descriptors, problem="ensurepip could not put pip into .venv.")


def _install(lock: str, descriptors: list[int], line: _Line) -> None:
    total = sum("==" in text for text in (BUILD / lock).read_text().splitlines())
    quiet = ["--no-input", "--progress-bar=off", "--disable-pip-version-check", "--no-user"]
    _run(
        ["pip", "install", *quiet, "--require-hashes", "--only-binary=:all:", f"--requirement={BUILD / lock}"],
        descriptors,
        problem=f"pip could not install build/{lock}; see its output above and `pip config debug`.",
        seen=lambda count: line.show(f"{count} of {total} packages"),
    )


def _run(module: list[str], descriptors: list[int], *, problem: str, seen: Callable[[int], None] | None = None) -> None:
    # -I hides PYTHONPATH, not pip's settings; the settings of the install location are removed.
    env = {name: value for name, value in os.environ.items() if name not in ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT")}
    output: deque[str] = deque(maxlen=15)
    count = 0
    with subprocess.Popen(
        [PYTHON, "-I", "-m", *module],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=env,
        pass_fds=descriptors,  # If this process is killed, the child keeps the lock while it writes.
    ) as process:
        for text in process.stdout or ():
            output.append(text.rstrip())
            if text.startswith(("Collecting ", "Requirement already satisfied: ")):
                count += 1
                if seen:
                    seen(count)
    if process.returncode:
        raise SetupError(problem, "\n".join(output))
