"""A process that has imported the command line and forks for every command, so that commands of tests start at once.

A command is a process like that of a user: it runs the launcher with its own arguments, directory, environment and
output. Only its modules are imported already. Variables that Python reads at its start need a new process, and so does
the doctor, which runs without `.venv`. Other programs of Python are forked likewise from a process with their modules.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import re
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAUNCHER = str(ROOT / "build" / "ci_build")
PACKAGE = "ci_build.cli"
MODULES = (
    *("ci_build.build.execute", "ci_build.release.chain", "ci_build.rocm.local", "core.http.client"),
    *("promotion.index.audit", "promotion.promote", "promotion.storage.bucket_url", "rich.table"),
    *("venv", "wheelkit.inspect.text", "wheelkit.repair.repair"),
)
SIGSTORE = ("pypi_attestations", "sigstore.models", "sigstore.oidc", "sigstore.sign", "sigstore.verify")
"""Modules that commands import late, in the environment of the tests and in one for attestations."""
_AT_START = re.compile("PYTHON|LANG|LC_|LD_|TZ$|GLIBC|MALLOC")
"""Variables that a process reads at its start."""
_PATH = "PYTHONPATH"
_LOCK = threading.Lock()
"""Requests of several threads follow one another; their commands run at the same time."""


@dataclass(frozen=True, kw_only=True)
class Preloaded:
    """A Python that has imported modules.

    Attributes:
        modules: names of the modules; those that do not exist are left out.
        path: folders of the modules, which PYTHONPATH of each program must contain too.
        variables: environment variables during the imports, as pairs.
    """

    modules: tuple[str, ...]
    path: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()


def run_python(
    preloaded: Preloaded, words: Sequence[str], cwd: Path | None, env: Mapping[str, str], timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program in a fork of a Python that has imported modules, like `subprocess.run` in a new Python.

    Args:
        words: arguments of the interpreter: `-c CODE`, `-m MODULE` or the path of a script, and the program's own.
    """
    return _run(sys.executable, json.dumps(asdict(preloaded)), words, cwd, env, [sys.executable, *words], timeout)


def run_command(
    words: Sequence[str], cwd: Path | None, env: Mapping[str, str], *, python: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    """Run a command of `ci_build` and return its exit code and output, like `subprocess.run`.

    Args:
        python: interpreter with the needed packages; another one than that of the tests runs the command without the
            launcher, which would start it in `.venv`.
    """
    argv = [python, *([LAUNCHER] if python == sys.executable else ["-m", PACKAGE]), *words]
    program = LAUNCHER if python == sys.executable else PACKAGE
    return _run(python, program, words, cwd, env, argv)


def _run(
    python: str,
    program: str,
    words: Sequence[str],
    cwd: Path | None,
    env: Mapping[str, str],
    argv: Sequence[str],
    timeout: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run words in a fork of the server of a program; `argv` does the same in a new process."""
    with _LOCK:
        server, process, environment = _server(python, program)
    changed = {name for name in env.keys() | environment if env.get(name) != environment.get(name)}
    known = {_PATH} if _is_preloaded(program) else set()
    if any(map(_AT_START.match, changed - known)) or "doctor" in words:
        return subprocess.run(argv, capture_output=True, text=True, check=False, cwd=cwd, env=env, timeout=timeout)
    pipes = [os.pipe(), os.pipe()]
    ours, its = socket.socketpair()
    request = {"words": list(words), "cwd": str(cwd or Path.cwd()), "env": dict(env)}
    text = json.dumps(request).encode(errors="surrogateescape")
    try:
        with _LOCK, contextlib.suppress(BrokenPipeError):  # the server ended, which is reported below
            socket.send_fds(server, [len(text).to_bytes(4)], [*(out for _, out in pipes), its.fileno()])
            server.sendall(text)
    finally:
        its.close()
        for _, out in pipes:
            os.close(out)
    with ours, selectors.DefaultSelector() as selector:
        output = {source: bytearray() for source, _ in pipes}
        for source in output:
            selector.register(source, selectors.EVENT_READ)
        while selector.get_map():
            events = selector.select(timeout)
            if not events:
                raise subprocess.TimeoutExpired(list(argv), timeout or 0)
            for key, _ in events:
                data = os.read(key.fd, 1 << 16)
                output[key.fd] += data
                if not data:
                    selector.unregister(key.fd)
                    os.close(key.fd)
        status = ours.recv(4)
    if not status:
        process.kill()
        raise RuntimeError(f"The server of commands ended: {process.communicate()[1].decode()}")
    said, told = (bytes(data).decode().replace("\r\n", "\n").replace("\r", "\n") for data in output.values())
    return subprocess.CompletedProcess(argv, int.from_bytes(status, signed=True), said, told)


def _is_preloaded(program: str) -> bool:
    """Report whether a server runs any program of Python, with modules that its client names."""
    return program.startswith("{")


@cache
def _server(python: str, program: str) -> tuple[socket.socket, subprocess.Popen[bytes], Mapping[str, str]]:
    """Start the server of a program for this process; return its socket, its process and its environment."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    ours, its = socket.socketpair()
    argv = [python, "-m", __name__, str(its.fileno()), program]
    # Commands inherit the files of their output, which must not be seekable.
    process = subprocess.Popen(
        argv, pass_fds=[its.fileno()], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    its.close()
    owner = os.getpid()

    def end() -> None:
        if os.getpid() == owner:  # not in a fork of this process
            ours.close()
            process.communicate()

    atexit.register(end)
    return ours, process, environment


def main() -> None:
    """Import the command line, then serve; in a forked process, run the command as the main program."""
    program, codes = sys.argv[2], list[int]()
    atexit.register(_leave, codes)  # before all other functions, so that it is called last
    _import_modules(program)
    gc.collect()
    gc.freeze()  # garbage collections of commands leave the shared memory alone
    _become(_serve(socket.socket(fileno=int(sys.argv[1]))), program)
    try:
        if _is_preloaded(program):
            _run_main()
        elif program == PACKAGE:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(program, run_name="__main__")
        codes.append(0)
    except SystemExit as ending:
        codes += [ending.code or 0] if isinstance(ending.code, int | None) else []
        raise


def _import_modules(program: str) -> None:
    """Import the modules of the command line, or those that a client names."""
    if _is_preloaded(program):
        given = json.loads(program)
        sys.path[1:1] = given["path"]
        os.environ.update(given["variables"])
        for name in given["modules"]:
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(name)
        return
    import ci_build.cli.commands as commands  # the client needs none of its modules

    found = pkgutil.walk_packages(commands.__path__, f"{commands.__name__}.")
    few, more = ((ModuleNotFoundError,), SIGSTORE) if program == PACKAGE else ((), MODULES)
    for name in (*more, *(module.name for module in found)):
        with contextlib.suppress(*few):  # the other interpreter has few packages
            importlib.import_module(name)


def _run_main() -> None:
    """Run the program in the arguments as the main program of a new Python does."""
    first, *rest = sys.argv
    if first == "-c":
        code, sys.argv[:] = rest[0], ["-c", *rest[1:]]
        sys.path.insert(0, "")
        names = {"__name__": "__main__", "__builtins__": __builtins__}
        exec(compile(code, "<string>", "exec"), names)
    elif first == "-m":
        sys.argv[:] = rest
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(first).resolve().parent))
        runpy.run_path(first, run_name="__main__")


def _leave(codes: Sequence[int]) -> None:
    """End the process without the removal of all modules, which would copy the shared memory."""
    if codes:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(codes[0] & 0xFF)


def _serve(control: socket.socket) -> tuple[Mapping[str, object], Sequence[int]]:
    """Fork for each request; return the request, and its descriptors of output, in the forked process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the commands
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not control:
                    pid, status = key.data
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    with status:
                        status.sendall(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]).to_bytes(4, signed=True))
                    continue
                length, descriptors, _, _ = socket.recv_fds(control, 4, 3)
                if not length:
                    sys.exit()
                request = json.loads(_receive(control, int.from_bytes(length)).decode(errors="surrogateescape"))
                pid = os.fork()
                if not pid:
                    control.close()
                    os.close(descriptors[2])
                    for held in [*selector.get_map().values()]:
                        if held.data:
                            os.close(held.fd)
                            held.data[1].close()
                    return request, descriptors[:2]
                for descriptor in descriptors[:2]:
                    os.close(descriptor)
                watched = os.pidfd_open(pid)
                selector.register(watched, selectors.EVENT_READ, (pid, socket.socket(fileno=descriptors[2])))


def _receive(control: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        data += control.recv(length - len(data))
    return data


def _become(request: tuple[Mapping[str, object], Sequence[int]], program: str) -> None:
    """Take over directory, environment, arguments and output of a command."""
    wanted, descriptors = request
    for number, descriptor in enumerate(descriptors, 1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(str(wanted["cwd"]))
    env, words = wanted["env"], wanted["words"]
    assert isinstance(env, dict)
    assert isinstance(words, list)
    os.environ.clear()
    os.environ.update(env)
    if _is_preloaded(program):
        given = json.loads(program)["path"]
        path = [folder for folder in sys.path if folder not in (str(ROOT), *given)]
        sys.path[:] = [*filter(None, str(env.get(_PATH, "")).split(os.pathsep)), *path]
        sys.argv[:] = words
        sys.orig_argv[:] = [sys.executable, *words]
        return
    sys.argv[:] = [program, *words]
    if program == LAUNCHER:
        sys.orig_argv[:] = [sys.executable, *sys.argv]
        sys.path.remove(str(ROOT))  # the launcher adds it


if __name__ == "__main__":
    main()
