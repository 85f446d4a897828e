"""Trees and tarballs on disk.

Resuming after a kill gives the same tree, and incomplete trees are never used.
"""

from __future__ import annotations

import errno
import gzip
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from ci_build.rocm.facts import selection
from ci_build.rocm.rocm_store import RocmStore, StoredTree
from core.digests import sha256_of
from core.errors import MachineError
from core.http.client import Client, RetryPolicy
from core.http.part import PartFile
from core.report import Reporter
from core.store import in_use
from core.unpack.tree_contents import differences
from tests.support.file_server import Behaviour, serving
from tests.support.made_rocm import COMPRESS, NAME, make_rocm, tarball

PATH = f"/tarball/{NAME}"
CHILD = """
import signal
import sys
from pathlib import Path
from core.report import Reporter
from core.http.client import Client
from ci_build.rocm.facts import selection
from ci_build.rocm.rocm_store import RocmStore
for sign in (signal.SIGINT, signal.SIGTERM):  # as in the command line
    signal.signal(sign, signal.default_int_handler)
store = RocmStore(Path(sys.argv[1]), progress=Reporter(terminal=False))
tree = store.from_url(Client(), sys.argv[2], sys.argv[3], selection(full=True))
print(tree.sha256)
"""
"""A process of its own, to be killed."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return tarball(
        make_rocm(tmp_path_factory.mktemp("rocm")),
        extra=random.Random(7).randbytes(4_000_000),
    )


@pytest.fixture
def told(data: bytes) -> Iterator[Behaviour]:
    """Return a server with the tarball."""
    with serving(Behaviour(files={PATH: data})) as server:
        yield server


def store(root: Path) -> RocmStore:
    return RocmStore(root, progress=Reporter(terminal=False))


def from_url(
    told: Behaviour,
    root: Path,
    *,
    sha256: str = "",
    full: bool = True,
    path: str = PATH,
) -> StoredTree:
    client = Client(policy=RetryPolicy(read=2, tries=3, first_wait=0.01))
    name = path.rpartition("/")[2]
    return store(root).from_url(
        client, told.url + path, name, selection(full=full), sha256=sha256
    )


def picture(root: Path) -> dict[str, tuple[int, bytes]]:
    """Return mode and content of every path."""
    entries = {}
    for path in root.rglob("*"):
        content = b""
        if path.is_symlink():
            content = str(path.readlink()).encode()
        elif path.is_file():
            content = path.read_bytes()
        entries[str(path.relative_to(root))] = (path.lstat().st_mode, content)
    return entries


def at_end(offset: int) -> bool:
    """Return whether an offset is near the end of the tarball."""
    return offset >= 3_600_000


def kill_at(size: int, root: Path, url: str) -> bool:
    """Run the child and kill it after the given number of bytes; return False if it ended first."""
    with start(root, url) as child:
        while child.poll() is None and arrived(root) < size:
            time.sleep(0.002)
        child.send_signal(signal.SIGKILL)
        return child.wait() == -signal.SIGKILL


@contextmanager
def start(root: Path, url: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start the child, and kill it at the end unless it ended."""
    argv = [sys.executable, "-c", CHILD, str(root), url, url.rpartition("/")[2]]
    with subprocess.Popen(
        argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def arrived(root: Path) -> int:
    """Return the number of the tarball's bytes on disk; -1 without a file."""
    sizes = [path.stat().st_size for path in root.glob("parts/*/data")]
    return max(sizes, default=-1)


def settle(told: Behaviour) -> None:
    """Wait until a server notices its client's death, and count bytes from then on."""
    told.pause = 0
    before = -1
    while before != told.sent:
        before = told.sent
        time.sleep(0.3)
    told.sent = 0


@pytest.mark.parametrize(("ranges", "compression"), [(True, "zst"), (False, "gz")])
def test_store_killed_anywhere_resumes_to_same_tree(
    tmp_path: Path, data: bytes, *, ranges: bool, compression: str
) -> None:
    path = PATH.removesuffix("gz") + compression
    data = COMPRESS[compression](gzip.decompress(data))
    with serving(Behaviour(files={path: data})) as told:
        expected = picture(from_url(told, tmp_path / "whole", path=path).root)
    root = tmp_path / "killed"
    # The server keeps the end of the file back, so that no child is fast enough to end.
    with serving(
        Behaviour(files={path: data}, pause=0.02, ranges=ranges, holds=at_end)
    ) as told:
        for size in (0, 1, 300_000, 1_000_000, 2_000_000, 3_000_000):
            assert kill_at(size, root, told.url + path)
            # The part has only bytes of the file, and no incomplete tree has a final
            # name.
            (folder,) = root.glob("parts/*")
            part = PartFile(folder)
            assert b"".join(part.first_bytes()) == data[: part.size]
            assert not list(root.glob("trees/[!.]*"))
        begun = arrived(root)
        assert begun >= 3_000_000
        told.holds = lambda _: False
        settle(told)
        tree = from_url(told, root, path=path)
        if ranges:
            assert told.sent <= len(data) - begun + 2
    assert picture(tree.root) == expected
    assert tree.sha256 == sha256_of(data)
    assert sorted(path.name for path in root.iterdir()) == [
        "origins",
        "tarballs",
        "trees",
    ]
    assert [*(root / "trees").iterdir()] == [tree.root.parent]


def test_store_shares_tree_between_runs(
    tmp_path: Path, told: Behaviour, data: bytes
) -> None:
    sha256 = sha256_of(data)
    first = from_url(told, tmp_path, sha256=sha256)
    told.seen.clear()
    assert from_url(told, tmp_path, sha256=sha256) == first
    assert told.seen == []
    # Another selection is unpacked from the stored tarball.
    other = from_url(told, tmp_path, sha256=sha256, full=False)
    assert told.seen == []
    assert (first.root / "share/doc/rocm/README").exists()
    assert not (other.root / "share/doc/rocm/README").exists()
    assert in_use(first.root.parent)


def test_store_fetches_unpinned_file_again_after_change(
    tmp_path: Path, told: Behaviour
) -> None:
    first = from_url(told, tmp_path)
    told.sent = 0
    assert from_url(told, tmp_path) == first
    assert told.sent <= 1
    told.files = {PATH: tarball(make_rocm(tmp_path / "other"), extra=b"new")}
    told.seen.clear()
    assert from_url(told, tmp_path).sha256 != first.sha256
    told.etag = False
    told.sent = 0
    from_url(told, tmp_path)
    assert told.sent >= len(told.files[PATH])


@pytest.mark.parametrize("harm", ["content", "marker"])
def test_store_unpacks_tree_again_after_crash(
    tmp_path: Path, told: Behaviour, data: bytes, harm: str
) -> None:
    sha256 = sha256_of(data)
    tree = from_url(told, tmp_path, sha256=sha256)
    entry = tree.root.parent
    file = tree.root / "include/extra.h"
    (entry / "boot").write_text("another start of this machine")
    file.parent.chmod(0o755)
    if harm == "content":
        file.chmod(0o644)
        file.write_bytes(bytes(4_000_000))
    else:
        (entry / "tree.json").write_text("{")
    again = from_url(told, tmp_path, sha256=sha256)
    assert differences(again.root, again.contents) == ()


def test_store_fetches_damaged_cached_tarball_again(
    tmp_path: Path, told: Behaviour, data: bytes
) -> None:
    sha256 = sha256_of(data)
    from_url(told, tmp_path, sha256=sha256)
    (tmp_path / "tarballs" / sha256 / NAME).write_bytes(bytes(len(data)))
    other = from_url(told, tmp_path, sha256=sha256, full=False)
    assert differences(other.root, other.contents) == ()
    assert (tmp_path / "tarballs" / sha256 / NAME).read_bytes() == data


def test_store_reports_full_disk_of_download_without_retry(
    tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = os.write
    room = 1_000_000

    def fake_write(fd: int, data: memoryview) -> int:
        nonlocal room
        if "/parts/" not in str(Path(f"/proc/self/fd/{fd}").readlink()):
            return written(fd, data)
        if room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room -= len(data)
        return written(fd, data)

    monkeypatch.setattr(os, "write", fake_write)
    with serving(Behaviour(files={PATH: data})) as told:
        with pytest.raises(
            MachineError, match=rf"Cannot write {tmp_path}/parts/.*/data: No space left"
        ):
            from_url(told, tmp_path)
        assert len(told.seen) == 1
        assert 0 < arrived(tmp_path) < 2_000_000
        room = 10**9
        assert from_url(told, tmp_path).sha256 == sha256_of(data)


def test_store_concurrent_runs_fetch_once(
    tmp_path: Path, data: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        serving(Behaviour(files={PATH: data}, pause=0.02)) as told,
        ThreadPoolExecutor(2) as pool,
    ):
        first = pool.submit(from_url, told, tmp_path)
        while arrived(tmp_path) < 1:
            assert not first.done()
            time.sleep(0.002)
        second = pool.submit(from_url, told, tmp_path)
        assert first.result() == second.result()
        assert told.sent <= len(data) + 2
    assert f"wait for another run that downloads {NAME}" in capsys.readouterr().err
