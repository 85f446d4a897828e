"""Set-up of `.venv` from a hash lock with the standard library, and program start in it."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

BUILD = Path(__file__).resolve().parent
ROOT = BUILD.parent
# A container sees the checkout read-only, and its Python differs from that of the host.
HOLDER = Path(os.environ.get("JAX_ROCM_RELEASE_VENV") or ROOT)
"""Folder with `.venv`: the checkout, or the value of JAX_ROCM_RELEASE_VENV."""
VENV = HOLDER / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "stamp.json"
"""Record of the content of `.venv`; it is written last and read before every use."""
LOCK_FILE = HOLDER / ".venv.lock"
"""Shared lock of programs that run from `.venv`; exclusive while `.venv` is recreated."""
SETUP_LOCK_FILE = HOLDER / ".venv.setup.lock"
"""Exclusive lock of a set-up."""
PATIENCE = 60.0
"""Seconds to wait for the programs that run from `.venv` before it is recreated."""
RUNTIME, DEVELOPERS = "requirements.lock", "requirements-dev.lock"
"""Lock files; the developer lock contains the runtime packages in the same versions."""
EXIT_MACHINE = 18
"""Exit code of core.errors.MachineError, which cannot be imported before `.venv` is set up."""
EXIT_INTERRUPTED = 130


class SetupError(Exception):
    """Failed set-up.

    The arguments are the message, then the last lines of the failed program's output.
    """


def launch(
    module: str, lock: str, bare: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Run `module` as the main program inside `.venv`, with the repository on sys.path.

    Args:
        module: name of the main module, or of a package with a module `__main__`.
        lock: name of the lock file in `build` that `.venv` must satisfy.
        bare: first argument -> module that runs instead, in the current Python and
            without `.venv`.
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
    """Ensure that the program runs inside `.venv`; create or update `.venv` if necessary.

    If the program runs outside `.venv`, or `.venv` had to be updated, exec restarts it
    inside `.venv`. The program holds a shared lock on `.venv` until it ends, so that no
    other process recreates `.venv`.
    """
    program = Path(sys.argv[0]).name
    try:
        inside = VENV.exists() and VENV.samefile(sys.prefix)
        if inside:
            # The descriptor stays open: the kernel releases the lock when this process
            # ends.
            descriptor = _locked(LOCK_FILE, fcntl.LOCK_SH)
            if _satisfies(lock):
                return
            os.close(descriptor)
        if not _satisfies(lock):
            _set_up(lock)
        elif not inside and sys.executable == str(PYTHON):
            raise SetupError(
                f"{PYTHON} does not start inside .venv; remove the folder {VENV} and"
                " start again."
            )
        # Start the same program again with the interpreter of `.venv` and the same
        # interpreter options.
        os.execv(PYTHON, [str(PYTHON), *sys.orig_argv[1:]])  # noqa: S606
    except SetupError as error:
        message, *output = error.args
        print(*output, f"{program}: error: {message}", sep="\n", file=sys.stderr)
        sys.exit(EXIT_MACHINE)
    except OSError as error:
        print(
            f"{program}: error: .venv cannot be used or set up: {error}.",
            file=sys.stderr,
        )
        sys.exit(EXIT_MACHINE)
    except KeyboardInterrupt:
        print(f"{program}: interrupted; the next start sets up .venv.", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)


def _locked(path: Path, kind: int, patience: float = float("inf")) -> int:
    """Return the descriptor of a locked file; child processes inherit an exclusive lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    os.set_inheritable(descriptor, kind == fcntl.LOCK_EX)
    began = time.monotonic()
    waiting = False
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if not waiting:
                print(
                    "Waiting for another process that sets up or uses .venv ...",
                    file=sys.stderr,
                    flush=True,
                )
            waiting = True
        else:
            return descriptor
        if time.monotonic() - began > patience:
            os.close(descriptor)
            raise SetupError(
                ".venv must be recreated, but a program that runs from it (such as"
                " `index serve`) keeps it in use; end that program and start again."
            )
        time.sleep(0.1)


def _satisfies(lock: str) -> bool:
    stamp = _stamp()
    return (
        stamp.get("locks", {}).get(lock) == _digest(lock)
        and stamp["made"] == _fingerprint()
        and set(stamp["packages"]) <= set(_packages())
    )


def _stamp() -> dict[str, Any]:
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return (
        stamp
        if isinstance(stamp, dict) and stamp.keys() == {"made", "packages", "locks"}
        else {}
    )


def _write_stamp(locks: Mapping[str, str]) -> None:
    part = STAMP.with_suffix(".part")
    part.write_text(
        json.dumps(
            {"made": _fingerprint(), "packages": _packages(), "locks": locks}, indent=2
        )
    )
    part.replace(STAMP)


def _fingerprint() -> dict[str, Any]:
    # A moved folder and a replaced or removed Python each invalidate `.venv`.
    try:
        config = (VENV / "pyvenv.cfg").read_text()
        status = PYTHON.stat()
    except OSError:
        return {}
    python = {
        "path": os.path.realpath(PYTHON),
        "size": status.st_size,
        "mtime": int(status.st_mtime),
    }
    return {
        "venv": str(VENV),
        "version": "{}.{}".format(*sys.version_info[:2]),
        "python": python,
        "config": config,
    }


def _packages() -> list[str]:
    return sorted(
        path.name for path in VENV.glob("lib/python*/site-packages/*.dist-info")
    )


def _digest(lock: str) -> str:
    return hashlib.sha256((BUILD / lock).read_bytes()).hexdigest()


def _set_up(lock: str) -> None:
    with ExitStack() as held:
        held.callback(os.close, _locked(SETUP_LOCK_FILE, fcntl.LOCK_EX))
        if _satisfies(lock):
            return  # Another process has set up `.venv` meanwhile.
        had = _stamp().get("locks", {})
        if DEVELOPERS in had:
            # `ci_build` must not remove the developer tools from a `.venv` that it
            # recreates.
            lock = DEVELOPERS
        # Adding packages does not affect programs that run from `.venv`; recreating it
        # does.
        adds = lock == DEVELOPERS and lock not in had and _satisfies(RUNTIME)
        if not adds:
            held.callback(os.close, _locked(LOCK_FILE, fcntl.LOCK_EX, PATIENCE))
        began = time.monotonic()
        start = f"Setting up .venv from build/{lock} ..."
        print(start, end=" ", file=sys.stderr, flush=True)
        end = "stopped after"
        try:
            if adds:
                # This digest matches no lock, so that a killed set-up is repeated.
                _write_stamp({**had, lock: "unfinished"})
            else:
                _create()
            _install(lock)
            _write_stamp({name: _digest(name) for name in (RUNTIME, lock)})
            end = "done in"
        finally:
            print(f"{end} {time.monotonic() - began:.0f} s", file=sys.stderr)


def _create() -> None:
    if importlib.util.find_spec("ensurepip") is None:
        raise SetupError(
            f"{sys.executable} cannot create virtual environments: run `apt install"
            " python3-venv` (Debian, Ubuntu), or use another Python, such as one from"
            " `uv python install`."
        )
    STAMP.unlink(missing_ok=True)
    if VENV.is_symlink() or VENV.is_file():
        VENV.unlink()
    elif VENV.exists():
        shutil.rmtree(VENV)
    venv.EnvBuilder(symlinks=True).create(VENV)
    _add_pip()


def _add_pip() -> None:
    """Add the pip that comes with Python; ensurepip, which is slower, compiles all its modules."""
    # Debian's package python3 has no ensurepip; the other one costs start-up time.
    import ensurepip
    import zipfile

    places = (
        sysconfig.get_config_var("WHEEL_PKG_DIR"),
        Path(ensurepip.__file__).with_name("_bundled"),
    )
    wheels: list[Path] = []
    for place in places:
        if place:
            wheels += sorted(Path(place).glob("pip-*-py3-none-any.whl"))
    if not wheels:
        _run("ensurepip could not install pip into .venv.", "-m", "ensurepip")
        return
    (packages,) = VENV.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheels[0]) as archive:
        archive.extractall(packages)


def _install(lock: str) -> None:
    text = (BUILD / lock).read_text()
    first = re.findall(r"^(?:uv|packaging)==.*(?:\n .*)*", text, re.MULTILINE)
    if len(first) == 2:
        (VENV / "first.lock").write_text("\n".join(first))
        _pip_install(lock, VENV / "first.lock")
        # uv does not know every setting of pip. If it fails, pip installs everything or
        # reports the problem.
        with suppress(SetupError):
            _run("uv failed.", str(BUILD / "_uv.py"), str(BUILD / lock))
            return
    _pip_install(lock, BUILD / lock)


def _pip_install(lock: str, requirements: Path) -> None:
    # The lock lists all dependencies. Modules are compiled when they are imported,
    # which most never are.
    locked = ("--require-hashes", "--no-deps", "--no-compile", "--only-binary=:all:")
    quiet = ("--no-input", "--progress-bar=off", "--disable-pip-version-check")
    _run(
        f"pip could not install build/{lock}; see its output above and `pip config"
        " debug`.",
        *("-m", "pip", "install", "--no-user", *quiet, *locked),
        f"--requirement={requirements}",
    )


def _offline(words: Sequence[str]) -> dict[str, str]:
    """Return pip's settings for `gate device --wheelhouse DIR`.

    DIR also has the packages of `.venv`.
    """
    text = "\n".join(words)
    match = re.search(r"^--wheelhouse[=\n](.+)$", text, re.MULTILINE)
    if match is None:
        return {}
    folder = Path(match[1]).absolute()
    links = folder / "wheels" if (folder / "wheels").is_dir() else folder
    return {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(links),
        "PIP_CONFIG_FILE": os.devnull,
    }


def _run(problem: str, *program: str) -> None:
    # -I ignores PYTHONPATH but not pip's settings, so those that change the install
    # location are removed.
    env = dict(os.environ)
    for name in ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT"):
        env.pop(name, None)
    done = subprocess.run(
        [PYTHON, "-I", *program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**env, **_offline(sys.argv)},
        # If this process is killed, the child holds the locks until it has stopped
        # writing.
        close_fds=False,
        check=False,
    )
    if done.returncode:
        raise SetupError(problem, *done.stdout.splitlines()[-15:])
