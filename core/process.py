"""The only module that starts processes.

Commands are argument lists, never shell strings, and are echoed.
"""

from __future__ import annotations

import codecs
import copy
import ctypes
import os
import re
import selectors
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NoReturn, Protocol, Self

from core.errors import ProcessError
from core.frozen import frozen
from core.interrupts import END_LOCK

_TAIL_LINES = 20
_GRACE_SECONDS = 5.0
_LOOK_SECONDS = 0.1
_SIGNALS = {sign.value: sign.name for sign in signal.Signals}
"""Names of signals by number; of the real-time signals, only the first and the last have a name."""
_INNER_QUOTE = r"['\"](?![\s,;:)\]}]|$)"
"""A quotation mark that does not end a quoted text, such as a part of a password."""
_NAME = r"[\w.%\[\]-]{0,64}"
_CREDENTIALS = re.compile(
    rf"(?<=://)(?:[^/\s'\"@]|{_INNER_QUOTE})+(?:@[^/\s'\"@]+)*(?=@)"
    # Passwords with spaces; a port ends a URL.
    r"|(?<=://)[^/\s'\"@:\[]*:(?!\d{1,5}(?:[\s'\",;:)\]}.]|$))\S[^/\r\n@]*(?=@)"
    # Parameters of signed URLs, and others with credentials.
    r"|([?&;#](?i:X-Amz-[\w-]+"
    rf"|{_NAME}(?:signature|token|secret|credential|passw|authorization){_NAME}|{_NAME}key(?:[-_.]?id)?"
    rf"|(?:{_NAME}[-_.\[])?(?:auth|key|pass|passphrase|pwd|sig)(?:[-_.\]]{_NAME})?)=)(?:[^&#\s'\"]|{_INNER_QUOTE})+"
    # Headers in the options that Bazel prints; values may contain spaces.
    r"|(?<=_header[= ]).+?(?= --|$)",
    re.MULTILINE,
)

CREDENTIAL_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_SECURITY_TOKEN",
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_ROLE_ARN",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "GITHUB_TOKEN",
    "GH_TOKEN",
    "ACTIONS_ID_TOKEN_REQUEST_TOKEN",
    "ACTIONS_ID_TOKEN_REQUEST_URL",
    "ACTIONS_RUNTIME_TOKEN",
    "CI_JOB_TOKEN",
    "CI_JOB_JWT",
    "CI_JOB_JWT_V1",
    "CI_JOB_JWT_V2",
    "CI_REGISTRY_PASSWORD",
)
"""Environment variables with credentials of AWS, GitHub or GitLab, or with the place of some."""
_PR_SET_DUMPABLE = 4

LineSink = Callable[[str], None]
ByteSink = Callable[[int, int], None]
Watch = Callable[[int], str]


@frozen
class ProcessResult:
    """Result of a finished process.

    Attributes:
        returncode: exit status, or the negative number of the signal that ended the
            process.
    """

    returncode: int
    stdout: str = ""
    stderr: str = ""


class Runner(Protocol):
    """Interface for running commands on this machine or in containers on it."""

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        check: bool = True,
        timeout: float | None = None,
        on_line: LineSink | None = None,
        keep: int | None = None,
    ) -> ProcessResult:
        """Run one command to its end.

        Args:
            argv: command as a list, never a shell string.
            env: changes to the environment; a key set to "" is removed.
            cwd: working directory.
            check: whether a non-zero exit status raises ProcessError.
            timeout: seconds after which the command is stopped and ProcessError is
                raised.
            on_line: callback for each line of standard output while the command runs.
            keep: number of characters to keep from the end of each stream; None keeps
                all.
        """


@dataclass
class _Stream:
    """Pipe of a child process.

    Decodes incrementally, passes on whole lines, and keeps all text or its end.
    """

    pipe: IO[bytes]
    sink: LineSink | None
    keep: int | None
    text: deque[str] = field(default_factory=deque)
    pending: str = ""

    def __post_init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> None:
        chunk = self._decoder.decode(data, final=not data)
        self.text.append(chunk)
        if self.keep is not None:
            while (
                len(self.text) > 1
                and sum(map(len, self.text)) - len(self.text[0]) >= self.keep
            ):
                self.text.popleft()
            self.pending = self.pending[-self.keep :]
        *lines, self.pending = (self.pending + chunk).split("\n")
        if not data and self.pending:
            lines.append(self.pending)
            self.pending = ""
        if self.sink is not None:
            for line in lines:
                self.sink(without_credentials(line))


def render(argv: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """Return the command in shell syntax after its environment changes, without credentials."""
    changes = [
        f"{key}={shlex.quote(value)}" for key, value in sorted((env or {}).items())
    ]
    return without_credentials(" ".join((*changes, shlex.join(argv))))


def without_credentials(text: str) -> str:
    """Replace credentials with `****`.

    These are user and password of every URL, the values of query parameters with names
    such as `sig`, `token` or `X-Amz-Signature`, and the values of Bazel's remote_header
    options. Logs may be kept and published as evidence.
    """
    return _CREDENTIALS.sub(r"\1****", text)


def merge_environment(
    base: Mapping[str, str], changes: Mapping[str, str]
) -> dict[str, str]:
    """Return an environment with changes; a key changed to "" is removed."""
    return {
        key: value
        for key, value in {**base, **changes}.items()
        if value != "" or key not in changes
    }


def forbid_inspection() -> None:
    """Forbid other processes of the user to read this one's memory and environment.

    They can neither open its /proc/PID/environ nor trace it, and it leaves no core
    dump. Root, processes with CAP_SYS_PTRACE, and the environment of the shell that
    started this process are not affected; nor are programs that this process starts.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def exec_replace(argv: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process with a command that keeps the terminal, for interactive commands.

    Raises:
        ProcessError: the command could not be started.
    """
    try:
        os.execvpe(argv[0], list(argv), dict(environment))  # noqa: S606 - a list of words, no shell
    except OSError as error:
        raise ProcessError(
            f"{argv[0]} could not be started: {error.strerror}."
        ) from error


class HostRunner:
    """Runner of commands on this machine.

    Args:
        environment: environment variables that the commands inherit.
        echo: callback for every command line before its start.
        sink: callback for every line that a command prints.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        echo: LineSink | None = None,
        sink: LineSink | None = None,
    ) -> None:
        self._environment = dict(environment)
        self._echo = echo
        self._sink = sink
        self._stop_event: threading.Event | None = None

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the environment variables that commands inherit."""
        return dict(self._environment)

    def with_listener(self, listener: LineSink) -> Self:
        """Return a runner that also passes commands and lines of output to a listener."""
        other = copy.copy(self)
        other._echo = _both(self._echo, listener)
        other._sink = _both(self._sink, listener)
        return other

    def with_stop_event(
        self, stop: threading.Event, scratch: Path | None = None
    ) -> Self:
        """Return a runner whose commands end when an event is set, for commands of other threads.

        Args:
            scratch: folder for temporary files, which commands that are ended leave
                behind; None for the usual one.
        """
        other = copy.copy(self)
        other._stop_event = stop
        if scratch is not None:
            other._environment = {**self._environment, "TMPDIR": str(scratch)}
        return other

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        check: bool = True,
        timeout: float | None = None,
        on_line: LineSink | None = None,
        watch: Watch | None = None,
        keep: int | None = None,
    ) -> ProcessResult:
        """Run one command to its end.

        An interrupt of this call also ends the command's whole process group.

        Args as in `Runner.run`, and:
            watch: callback with the process id of the command, called several times a
                second; a returned clause such as `used too much memory` stops the
                command and becomes part of the ProcessError.
        """
        if self._echo is not None:
            self._echo(render(argv, env))
        deadline = time.monotonic() + timeout if timeout else None
        process: subprocess.Popen[bytes] | None = None

        def remaining_wait() -> float | None:
            """Return the seconds to wait before the next call.

            _StoppedError if the command must be stopped.
            """
            if self._stop_event is not None and self._stop_event.is_set():
                raise _StoppedError("was cancelled")
            assert process is not None
            if watch is not None and (reason := watch(process.pid)):
                raise _StoppedError(f"{reason} and was stopped")
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise _StoppedError(f"ran longer than {timeout:g} s and was stopped")
            # Only the main thread is interrupted while it waits; see core.interrupts.
            main = threading.current_thread() is threading.main_thread()
            looks = watch is not None or self._stop_event is not None or not main
            waits = [
                wait
                for wait in (left, _LOOK_SECONDS if looks else None)
                if wait is not None
            ]
            return min(waits, default=None)

        try:
            with END_LOCK:  # a thread that ends in Popen would leave the command behind
                process = self._start(argv, env or {}, cwd)
            out, err = _drain(
                process,
                on_line or self._sink,
                self._sink,
                remaining_wait,
                keep,
            )
            returncode = _wait(process, remaining_wait)
        except BaseException as error:
            if process is not None:
                try:
                    _terminate(process)
                finally:  # another interrupt ends the wait
                    _kill(process)
            if isinstance(error, _StoppedError):
                raise ProcessError(f"`{render(argv)}` {error}.") from error
            raise
        done = ProcessResult(returncode=returncode, stdout=out, stderr=err)
        if check and returncode != 0:
            raise ProcessError(
                failure(argv, done),
                hint="Run the command by hand to see its full output.",
            )
        return done

    def _start(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: str | None
    ) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                list(argv),
                env=merge_environment(self._environment, env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise ProcessError(
                f"{argv[0]} could not be started: {error.strerror}.",
                hint=f"Install {argv[0]} or correct PATH.",
            ) from error


def failure(argv: Sequence[str], done: ProcessResult) -> str:
    """Return the message about a failed command, with the end of its output."""
    code = done.returncode
    how = f"exit code {code}" if code >= 0 else f"signal {_SIGNALS.get(-code, -code)}"
    lines = without_credentials(f"{done.stdout}\n{done.stderr}").splitlines()
    tail = [line for line in lines if line.strip()][-_TAIL_LINES:]
    return "\n  ".join((f"`{render(argv)}` failed with {how}.", *tail))


@contextmanager
def ignore_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C and SIGTERM during a cleanup, so that they do not interrupt it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        sign: signal.signal(sign, signal.SIG_IGN)
        for sign in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)


class _StoppedError(Exception):
    """A command must be stopped; the text of the error is the reason."""


def _both(first: LineSink | None, second: LineSink) -> LineSink:
    def sink(line: str) -> None:
        if first is not None:
            first(line)
        second(line)

    return sink


def _drain(
    process: subprocess.Popen[bytes],
    out_sink: LineSink | None,
    err_sink: LineSink | None,
    remaining_wait: Callable[[], float | None],
    keep: int | None,
) -> tuple[str, str]:
    """Read both pipes to their end."""
    assert process.stdout is not None
    assert process.stderr is not None
    streams = (
        _Stream(process.stdout, out_sink, keep),
        _Stream(process.stderr, err_sink, keep),
    )
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream.pipe, selectors.EVENT_READ, stream)
        while selector.get_map():
            for key, _ in selector.select(remaining_wait()):
                data = os.read(key.fd, 65536)
                key.data.feed(data)
                if not data:
                    selector.unregister(key.fileobj)
                    key.data.pipe.close()
    return "".join(streams[0].text), "".join(streams[1].text)


def _wait(
    process: subprocess.Popen[bytes], remaining_wait: Callable[[], float | None]
) -> int:
    """Return the exit status; a command may close its pipes long before it ends."""
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(remaining_wait())


def _terminate(process: subprocess.Popen[bytes]) -> None:
    """Ask a child's process group to end, and wait for the child."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_SECONDS)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the processes of a child's group that are left, since they may ignore SIGTERM."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_SECONDS)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
