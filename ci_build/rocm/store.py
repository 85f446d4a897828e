"""Where ROCm trees and tarballs are kept: by content, whole or not at all, read-only, shared by all runs.

    parts/<sha256 of the URL>/     what has arrived so far of a tarball, a prefix of it
    tarballs/<sha256>/<name>       tarballs that arrived whole
    trees/<sha256>-<selection>/    tree.json, contents.json, and the tree itself in rocm/
    origins/<sha256 of the URL>    what a server said of a file that came whole, and its sha256

A folder of `trees` gets its name when it is complete. Whoever uses or makes one holds a shared lock on the folder, so
that nobody else takes it for garbage; locks end with their process.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock

from ci_build.errors import ArchiveError, InputError
from ci_build.model import Progress
from ci_build.rocm.client import Client
from ci_build.rocm.extract import Contents, Wanted, dump_contents, extract, load_contents
from ci_build.rocm.feed import Feed, KnownDigest
from ci_build.rocm.fetch import ChangedError, Hash, RemoteFile, Version
from ci_build.rocm.formats import format_of
from ci_build.rocm.packages import Packages, prefix_of
from ci_build.rocm.treefiles import NEW, differences, hold, remove, sweep
from ci_build.runner import without_credentials

_READ = 1 << 20
_FORMAT = 1
"""Of tree.json; another one is made anew."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class WrongDigestError(InputError):
    """A tarball that is another one than the one that was asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredTree:
    """A complete tree.

    Attributes:
        root: the ROCm prefix; nobody may write there.
        sha256, size: of the tarball that it was unpacked from.
        contents: every path of the tarball, also what was left out.
    """

    root: Path
    sha256: str
    size: int
    contents: Contents


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """What is taken out of a tarball; its name is part of a tree's name."""

    name: str
    wanted: Wanted


class RocmStore:
    """Trees and tarballs below one folder.

    Args:
        keep_tarballs: keep what was fetched, which also lets a killed fetch go on; otherwise nothing but the tree
            is ever on disk.
    """

    def __init__(self, root: Path, *, progress: Progress, keep_tarballs: bool = True) -> None:
        self.root = root
        self._progress = progress
        self._keep = keep_tarballs
        self._held: list[int] = []

    def find(self, sha256: str, selection: Selection) -> StoredTree | None:
        """The tree of a tarball, if it is there and whole; it is in use from now on until this process ends."""
        entry = self._entry(sha256, selection)
        try:
            fd = hold(entry)
        except OSError:
            return None
        tree = _load(entry)
        if tree is None or not self._survived(entry, tree):
            os.close(fd)
            remove(entry)
            return None
        self._held.append(fd)
        os.utime(entry)
        return tree

    def from_file(self, path: Path, selection: Selection, *, sha256: str = "") -> StoredTree:
        """Unpack a tarball of this machine, or find it unpacked.

        Args:
            sha256: what it has to be, where that is known.
        """
        hashed, size = hashlib.sha256(), path.stat().st_size
        if any(_size(entry) == size for entry in self.root.glob("trees/[!.]*")):
            with path.open("rb", buffering=0) as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if sha256 in ("", found) and (tree := self.find(found, selection)):
                return tree
        self._progress.step(f"unpack {path.name}")
        feed = Feed(self._told(_read(path, hashed), size))
        return self._unpack(feed, path.name, hashed, selection, expected=sha256, where=str(path))

    def from_url(self, client: Client, url: str, name: str, selection: Selection, *, sha256: str = "") -> StoredTree:
        """Fetch a tarball and unpack it meanwhile, or find it.

        Args:
            name: its file name.
            sha256: what it has to be, where that is known.

        Raises:
            InputError: it cannot be had, or has another sha256 (WrongDigestError); ArchiveError: it cannot be unpacked.
        """
        origin = self.root / "origins" / hashlib.sha256(url.encode()).hexdigest()
        unpinned = not sha256
        if unpinned:
            sha256 = _unchanged(origin, RemoteFile(client, url))
        if sha256 and (tree := self.find(sha256, selection)):
            return tree
        if sha256 and (kept := self.root / "tarballs" / sha256 / name).is_file():
            os.utime(kept.parent)
            return self.from_file(kept, selection, sha256=sha256)
        part = self.root / "parts" / origin.name
        part.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(part.with_suffix(".lock")):
            part.mkdir(exist_ok=True)
            if sha256 and (tree := self.find(sha256, selection)):  # another run had the lock, and has finished
                return tree
            if unpinned:
                sha256 = ""
            try:
                return self._fetch(client, url, name, selection, part, sha256)
            except ChangedError:
                if not (part / "data").exists():
                    raise
                # What was there is of an older state of the file.
                (part / "data").unlink()
                return self._fetch(client, url, name, selection, part, sha256)

    def _fetch(
        self, client: Client, url: str, name: str, selection: Selection, part: Path, expected: str
    ) -> StoredTree:
        remote, hashed, data = RemoteFile(client, url), hashlib.sha256(), part / "data"
        begun = data.stat().st_size if data.exists() else 0
        if begun and (known := _known(part)):
            remote.version = known
        self._progress.step(f"fetch and unpack {name}{f', from byte {begun} on' if begun else ''}")
        feed = Feed(self._arriving(remote, hashed, part, begun), remote.halt)
        try:
            tree = self._unpack(feed, name, hashed, selection, expected=expected, where=without_credentials(url))
        except (ArchiveError, WrongDigestError):
            data.unlink(missing_ok=True)
            raise
        if self._keep:
            final = self.root / "tarballs" / tree.sha256
            final.mkdir(parents=True, exist_ok=True)
            data.replace(final / name)
        shutil.rmtree(part, ignore_errors=True)
        origin = self.root / "origins" / part.name
        origin.parent.mkdir(exist_ok=True)
        origin.write_text(json.dumps({"sha256": tree.sha256, **asdict(remote.version)}), encoding="utf-8")
        return tree

    def _arriving(self, remote: RemoteFile, hashed: Hash, part: Path, begun: int) -> Iterator[bytes | memoryview]:
        """What arrived before, from disk, and what still comes, kept on disk as well."""
        done = begun
        if begun:
            yield from self._told(_read(part / "data", hashed), begun)
        if not self._keep:
            for chunk in remote.chunks(begun, hashed):
                done += len(chunk)
                self._progress.advance(done, remote.version.size or 0)
                yield chunk
            return
        with (part / "data").open("ab", buffering=0) as file:
            for chunk in remote.chunks(begun, hashed):
                if done == begun:
                    (part / "version.json").write_text(json.dumps(asdict(remote.version)), encoding="utf-8")
                file.write(chunk)
                done += len(chunk)
                self._progress.advance(done, remote.version.size or 0)
                yield chunk

    def from_packages(
        self, packages: Packages, selection: Selection, prefix: Callable[[Sequence[Path]], Iterator[bytes]] = prefix_of
    ) -> StoredTree:
        """Make the prefix that ROCm's packages hold together, or find it made.

        Args:
            prefix: makes it out of their files, as a tar stream; by default they are of pip.
        """
        if tree := self.find(packages.digest, selection):
            return tree
        self._progress.step(f"unpack {', '.join(sorted(packages.files))}")
        feed = Feed(prefix(tuple(packages.files.values())))
        where = " ".join(filter(None, ("ROCm", packages.version, "of packages")))
        return self._unpack(feed, where + ".tar", KnownDigest(packages.digest), selection, expected="", where=where)

    def _unpack(
        self, feed: Feed, name: str, hashed: Hash, selection: Selection, *, expected: str, where: str
    ) -> StoredTree:
        trees = self.root / "trees"
        trees.mkdir(parents=True, exist_ok=True)
        sweep(trees)
        work = Path(tempfile.mkdtemp(prefix=NEW, dir=trees))
        fd = hold(work)
        try:
            (work / "rocm").mkdir()
            with feed:
                contents = extract(
                    feed, "tar" if name.endswith(".tar") else format_of(name), work / "rocm", wanted=selection.wanted
                )
            if expected and hashed.hexdigest() != expected:
                raise WrongDigestError(
                    f"{where} has sha256 {hashed.hexdigest()}, not {expected}.",
                    hint="If it was replaced on purpose, give the new sha256 or remove it from rocm.lock.",
                )
            entry = self._entry(hashed.hexdigest(), selection)
            (work / "contents.json").write_bytes(dump_contents(contents))
            (work / "boot").write_text(_boot())
            marker = {"format": _FORMAT, "name": name, "sha256": hashed.hexdigest(), "size": feed.count}
            (work / "tree.json").write_text(json.dumps(marker, indent=1))
            work.chmod(0o755)
            with suppress(OSError):  # where another run was first, its tree stays: it is in use
                work.rename(entry)
        finally:
            os.close(fd)
            if work.exists():
                remove(work)
        tree = self.find(hashed.hexdigest(), selection)
        if tree is None:
            raise InputError(f"{entry} was removed while it was made.", hint="Run the same command again.")
        return tree

    def _entry(self, sha256: str, selection: Selection) -> Path:
        return self.root / "trees" / f"{sha256}-{selection.name}"

    def _survived(self, entry: Path, tree: StoredTree) -> bool:
        """Whether a tree from before this machine started last is still what it was: a crash may have lost bytes."""
        if (entry / "boot").read_text() == _boot() != "":
            return True
        self._progress.step(f"check {entry.name}, which is older than the last start of this machine")
        if differences(tree.root, tree.contents):
            return False
        (entry / "boot").write_text(_boot())
        return True

    def _told(self, chunks: Iterator[bytes], total: int) -> Iterator[bytes]:
        done = 0
        for chunk in chunks:
            done += len(chunk)
            self._progress.advance(done, total)
            yield chunk


def _load(entry: Path) -> StoredTree | None:
    try:
        marker = json.loads((entry / "tree.json").read_text(encoding="utf-8"))
        contents = load_contents((entry / "contents.json").read_bytes())
        if marker["format"] != _FORMAT:
            return None
        return StoredTree(root=entry / "rocm", sha256=marker["sha256"], size=marker["size"], contents=contents)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _size(entry: Path) -> int:
    """Of the tarball that a tree was unpacked from; -1 where there is no tree."""
    try:
        return int(json.loads((entry / "tree.json").read_text(encoding="utf-8"))["size"])
    except (OSError, ValueError, KeyError, TypeError):
        return -1


def _unchanged(origin: Path, remote: RemoteFile) -> str:
    """The sha256 of what came from there before, if the server says that it is still the same; else empty."""
    try:
        before = json.loads(origin.read_text(encoding="utf-8"))
        sha256, version = str(before.pop("sha256")), Version(**before)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""
    # Without a validator nothing says that equal sizes are equal files.
    return sha256 if (version.etag or version.modified) and remote.probe() == version else ""


def _known(part: Path) -> Version | None:
    try:
        return Version(**json.loads((part / "version.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _read(path: Path, hashed: Hash) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        while data := file.read(_READ):
            hashed.update(data)
            yield data


def _boot() -> str:
    try:
        return _BOOT.read_text()
    except OSError:
        return ""
