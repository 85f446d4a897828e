"""Folders by content key: created atomically, locked during use, and removed when stale.

A shared lock on a folder prevents other processes from removing the folder; the lock
ends with its process. Locks are on the folders themselves, so that no lock files
remain.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from core.os_errors import writes_to

NEW = ".new-"
"""Prefix of folders that are being created or removed."""
_POLL = 0.05
"""Seconds between two attempts to lock a file."""


class ContentStore:
    """Folders below a root, named by a key of their content.

    Several processes may use one store concurrently.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, key: str) -> Path:
        """Return the folder of a key, which may not exist."""
        return self.root / key

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Create a locked folder on the same file system.

        It is removed at the end unless it was published.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        creating = lock_shared(
            self.root
        )  # until the new folder has its own lock, `sweep` must not look at it
        try:
            work = Path(tempfile.mkdtemp(prefix=NEW, dir=self.root))
            fd = lock_shared(work)
        finally:
            os.close(creating)
        try:
            with writes_to(work):
                yield work
        finally:
            remove(work)
            os.close(fd)

    def publish(self, folder: Path, key: str) -> bool:
        """Rename a finished folder to its key.

        Keep the existing folder and return False if another run was first.

        Raises:
            OSError: the folder cannot be renamed, and no other run published it.
        """
        final = self.folder(key)
        final.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.rename(final)
        except OSError:
            if final.is_dir():
                return False
            raise
        return True

    def sweep(self) -> None:
        """Remove scratch folders that killed runs left; folders of running processes are locked."""
        try:
            root = _lock(self.root, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (
            OSError
        ):  # there is no store, or another run is creating a folder; a later run sweeps
            return
        try:
            dead = [
                folder for folder in self.root.glob(f"{NEW}*") if not in_use(folder)
            ]
        finally:
            os.close(root)
        for folder in dead:
            remove(folder)


def lock_shared(folder: Path) -> int:
    """Lock a folder for as long as the returned descriptor is open."""
    return _lock(folder, fcntl.LOCK_SH)


def mark_used(folder: Path) -> None:
    """Set the time of a folder's last use to now, so that `ci_build cache` keeps it.

    A read-only folder stays as it is.
    """
    with suppress(OSError):
        os.utime(folder)


@contextmanager
def lock_in_use(folder: Path) -> Iterator[None]:
    """Create and lock a folder, so that `ci_build cache` keeps it during the block and after."""
    folder.mkdir(parents=True, exist_ok=True)
    mark_used(folder)
    fd = lock_shared(folder)
    try:
        yield
    finally:
        mark_used(folder)
        os.close(fd)


def in_use(folder: Path) -> bool:
    """Return whether a process has locked a folder."""
    try:
        fd = os.open(folder, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


@contextmanager
def lock_alone(folder: Path, on_wait: Callable[[], None]) -> Iterator[bool]:
    """Create a folder if necessary, and exclude all other processes from it.

    At the end, the folder and its parent are removed if they are empty.

    Args:
        on_wait: called before a wait for another process.

    Yields:
        Whether another process had the lock.
    """
    waited = False
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            try:
                fd = _lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not waited:
                    on_wait()
                waited = True
                fd = _lock(folder, fcntl.LOCK_EX)
        except (
            FileNotFoundError
        ):  # another run has just removed the empty folder or its parent
            continue
        if _is_at(fd, folder):
            break
        os.close(fd)
    try:
        yield waited
    finally:
        with suppress(OSError):
            folder.rmdir()
            folder.parent.rmdir()
        os.close(fd)


@contextmanager
def hold_lock(path: Path, seconds: float | None = None) -> Iterator[None]:
    """Create a file if necessary, and hold its lock during the block; the file stays.

    Args:
        seconds: longest wait for another holder; None waits without limit.

    Raises:
        TimeoutError: another holder still has the lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    end = None if seconds is None else time.monotonic() + seconds
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        # A wait inside flock could not be ended from another thread.
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if end is not None and time.monotonic() >= end:
                    raise TimeoutError(f"{path} is locked") from None
            time.sleep(_POLL)
        yield
    finally:
        os.close(fd)


@contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Create a file and lock it; the file is removed at the end, or by the next run after a kill.

    Raises:
        BlockingIOError: another process has the lock.
        OSError: the file cannot be created.
    """
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(fd)
            raise
        if _is_at(fd, path):
            break
        os.close(fd)  # the previous owner removed the file between the two calls
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(fd)


def _lock(folder: Path, operation: int) -> int:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, operation)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _is_at(fd: int, path: Path) -> bool:
    """Return whether a path still leads to the opened file.

    A lock on a removed file has no effect.
    """
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def remove(folder: Path) -> bool:
    """Remove a folder, even a read-only one.

    It is renamed first, so that no other run sees a partial folder.

    Of a symbolic link, only the link is removed.

    Returns:
        Whether the folder was removed; False if it does not exist or cannot be renamed.
    """
    if folder.is_symlink():
        try:
            folder.unlink()
        except OSError:
            return False
        return True
    gone = folder.with_name(f"{NEW}{os.getpid()}-{folder.name}")
    try:
        fd = lock_shared(folder)  # `sweep` of another run leaves it alone
    except OSError:
        return False
    try:
        folder.rename(gone)
        gone.chmod(0o700)
        for path, folders, _ in os.walk(gone):
            for name in folders:
                if not (inner := Path(path, name)).is_symlink():
                    inner.chmod(0o700)
        shutil.rmtree(gone, ignore_errors=True)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
