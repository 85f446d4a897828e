"""System calls below a folder, one of which fails, is done twice or in part, or is the last one of its process."""

from __future__ import annotations

import errno
import io
import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest.mock import patch

from promotion.storage import directory_bucket

_ERRORS = {
    "link": (errno.EIO, errno.ENOSPC, errno.EDQUOT),
    "replace": (errno.EIO, errno.ENOSPC),
    "rename": (errno.EIO, errno.ENOSPC),
    "unlink": (errno.EIO, errno.EROFS),
    "mkdir": (errno.EIO, errno.ENOSPC, errno.EROFS),
    "fsync": (errno.EIO, errno.ENOSPC),
    "fchmod": (errno.EIO, errno.EROFS),
    "open": (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.ESTALE),
    "scandir": (errno.EIO, errno.ESTALE),
    "copy_file_range": (errno.EIO, errno.ENOSPC),
    "write": (errno.EIO, errno.ENOSPC, errno.EDQUOT),
    "read": (errno.EIO, errno.ESTALE),
}
"""System call -> errors that it may have."""
_NAMES = {"link", "replace", "rename", "unlink", "mkdir"}
"""Calls that a network file system may do before it reports an error, or may repeat."""
_BYTES = {"write", "copy_file_range"}
"""Calls that may do a part of their work without an error."""


class FailingDisk:
    """While entered, the system call number `at` below a folder meets a fault that `seed` chooses.

    Flushes do nothing, so tests do not wait for the disk.

    Args:
        at: number of the system call that meets the fault, from 0. -1 for none.
        kill: whether the process is killed before or after the call, instead of any other fault.

    Attributes:
        calls: number of system calls.
        injected: description of the fault; empty if there was none.
    """

    def __init__(self, root: Path, *, at: int = -1, seed: int = 0, kill: bool = False) -> None:
        self._root, self._at, self._kill = f"{root}/", at, kill
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self.calls, self.injected = 0, ""
        self._patches = [
            *(patch.object(os, name, self._disturbed(name, getattr(os, name))) for name in _ERRORS if hasattr(os, name)
              and name not in ("write", "read")),
            patch.object(io, "open", self._open_to_read(io.open)),
            patch.object(directory_bucket, "open", self._open_to_write, create=True),
        ]  # fmt: skip

    def __enter__(self) -> FailingDisk:
        for one in self._patches:
            one.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for one in reversed(self._patches):
            one.stop()

    def meet(self, name: str, call: Callable[..., Any], about: str, *arguments: Any, **words: Any) -> Any:
        """Do a system call, which may meet the fault."""
        with self._lock:
            mine, self.calls = self.calls == self._at, self.calls + 1
        if not mine:
            return call(*arguments, **words)
        kinds = ["before", *(["after", "twice"] if name in _NAMES else ["partly"] if name in _BYTES else [])]
        kind = self._random.choice(["before", "after"] if self._kill else kinds)
        number = self._random.choice(_ERRORS[name])
        self.injected = f"{'killed' if self._kill else errno.errorcode[number]} {kind} {name} {about}"
        if self._kill:
            if kind == "after":
                call(*arguments, **words)
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "partly":
            return _part(name, call, *arguments, **words)
        if kind != "before":
            call(*arguments, **words)
        if kind == "twice":
            return call(*arguments, **words)
        raise OSError(number, os.strerror(number))

    def _below(self, target: object) -> str:
        """Return the path of a name or descriptor below the folder, or an empty text."""
        if isinstance(target, int):
            target = Path(f"/proc/self/fd/{target}").readlink()
        path = os.fspath(target) if isinstance(target, str | os.PathLike) else ""
        return path.removeprefix(self._root) if isinstance(path, str) and f"{path}/".startswith(self._root) else ""

    def _disturbed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        real = (lambda descriptor: None) if name == "fsync" else call

        def disturbed(*arguments: Any, **words: Any) -> Any:
            # copy_file_range(source, target), link(source, target): the target says where the work is done.
            about = self._below(arguments[1] if name in ("copy_file_range", "link") else arguments[0])
            if not about:
                return call(*arguments, **words)
            return self.meet(name, real, about, *arguments, **words)

        return disturbed

    def _open_to_read(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def opened(file: Any, mode: str = "r", buffering: int = -1, *more: Any, **words: Any) -> Any:
            about = self._below(file) if mode == "rb" and not isinstance(file, int) else ""
            if not about:
                return real(file, mode, buffering, *more, **words)
            raw = self.meet("open", _File, about, os.fspath(file), "rb", self, about)
            return raw if buffering == 0 else io.BufferedReader(raw)

        return opened

    def _open_to_write(self, file: Any, mode: str, buffering: int) -> Any:
        if isinstance(file, int) and (about := self._below(file)):
            return _File(file, mode, self, about)
        return os.fdopen(file, mode, buffering)


class _File(io.FileIO):
    """A file whose reads and writes may meet the fault."""

    def __init__(self, file: str | int, mode: str, disk: FailingDisk, about: str) -> None:
        super().__init__(file, mode)
        self._disk, self._about = disk, about

    def readinto(self, buffer: Any) -> Any:
        return self._disk.meet("read", super().readinto, self._about, buffer)

    def readall(self) -> Any:
        return self._disk.meet("read", super().readall, self._about)

    def write(self, data: Any) -> Any:
        return self._disk.meet("write", super().write, self._about, data)


def _part(name: str, call: Callable[..., Any], *arguments: Any, **words: Any) -> Any:
    if name == "write":
        return call(arguments[0][: len(arguments[0]) // 2])
    source, target, count = arguments
    return call(source, target, max(1, count // 2), **words)
