"""Store of ROCm trees and tarballs by content, shared by all runs.

    parts/<sha256 of the URL>/     the received bytes of an unfinished download
    tarballs/<sha256>/<name>       complete tarballs
    trees/<sha256>-<selection>/    tree.json, contents.json, and the tree itself in
    rocm/ origins/<sha256 of the URL>    the server's version of a complete file, and
    its sha256

Trees are read-only, get their names when they are complete, and are locked while a
process uses them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from ci_build.rocm.pip_rocm import Packages
from ci_build.rocm.tree import link_device_libraries
from core.digests import sha256_of
from core.errors import ArchiveError, InputError
from core.frozen import frozen
from core.http.client import Client
from core.http.download import ChangedError, Hash, RemoteFile, load_version
from core.http.part import PartFile
from core.model import Progress
from core.process import without_credentials
from core.store import ContentStore, in_use, lock_alone, lock_shared, remove
from core.unpack.decompress import Chunks, chunks_of, format_of
from core.unpack.extract import Wanted, extract
from core.unpack.tree_contents import (
    Contents,
    differences,
    dump_contents,
    load_contents,
)

_FORMAT = 2
"""Format of tree.json; a tree of another format is unpacked again."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class WrongDigestError(InputError):
    """A tarball whose sha256 differs from the required one."""


@frozen
class StoredTree:
    """A complete tree.

    Attributes:
        root: the read-only prefix of ROCm.
        sha256, size: digest and bytes of the unpacked tarball.
        contents: every path of the tarball, including paths that were not unpacked.
        lock: descriptor that prevents other processes from removing the tree.
        unpacked: whether this run unpacked the tree.
    """

    root: Path
    sha256: str
    size: int
    contents: Contents
    lock: int = field(compare=False)
    unpacked: bool = field(default=False, compare=False)


@frozen
class Selection:
    """The files to unpack from a tarball; the selection's name is part of the tree's name."""

    name: str
    wanted: Wanted


class RocmStore:
    """Trees and tarballs below one folder; leftovers of killed runs are removed."""

    def __init__(self, root: Path, *, progress: Progress) -> None:
        self.root = root
        self._trees = ContentStore(root / "trees")
        self._trees.sweep()
        self._progress = progress

    def from_file(
        self, path: Path, selection: Selection, *, sha256: str = ""
    ) -> StoredTree:
        """Return the tree of a local tarball, unpacking it if the store does not have it."""
        hashed = hashlib.sha256()
        size = path.stat().st_size
        if any(
            _read_marker(entry).get("size") == size
            for entry in self.root.glob("trees/[!.]*")
        ):
            actual = sha256_of(path)
            if sha256 in ("", actual) and (tree := self._find(actual, selection)):
                return tree
        self._progress.step(f"unpack {path.name}")
        return self._unpack(
            _read(path, hashed),
            format_of(path.name),
            selection,
            name=path.name,
            where=str(path),
            digest=hashed.hexdigest,
            expected=sha256,
            total=lambda: size,
        )

    def from_url(
        self,
        client: Client,
        url: str,
        name: str,
        selection: Selection,
        *,
        sha256: str = "",
    ) -> StoredTree:
        """Return the tree of the tarball at a URL, downloaded if it is not stored.

        Args:
            name: file name of the tarball.
            sha256: required digest, or empty.

        Raises:
            InputError: the download failed.
            WrongDigestError: the file has another sha256.
            ArchiveError: the file cannot be unpacked.
        """
        if tree := self._find_download(client, url, name, selection, sha256):
            return tree
        folder = self.root / "parts" / sha256_of(url.encode())
        with lock_alone(
            folder,
            lambda: self._progress.step(f"wait for another run that downloads {name}"),
        ) as waited:
            if waited and (
                tree := self._find_download(client, url, name, selection, sha256)
            ):
                return tree
            part = PartFile(folder)
            begun = part.size > 0
            try:
                return self._fetch(client, url, name, selection, part, sha256)
            except (ChangedError, ArchiveError, WrongDigestError) as error:
                if not (
                    begun or (isinstance(error, ChangedError) and part.data.exists())
                ):
                    part.clear()
                    raise
                # The stored part is of an older version of the file, or lost bytes in a
                # crash.
                self._progress.step(f"download again from the start: {error.message}")
                part.clear()
                return self._fetch(client, url, name, selection, part, sha256)

    def from_packages(
        self,
        packages: Packages,
        selection: Selection,
        prefix: Callable[[], Generator[bytes]],
    ) -> StoredTree:
        """Return the prefix of ROCm's packages, unpacking it if the store does not have it.

        Args:
            prefix: function that yields a tar of the prefix.
        """
        if tree := self._find(packages.digest, selection):
            return tree
        self._progress.step(f"unpack {len(packages.sha256)} packages")
        where = " ".join(filter(None, ("ROCm", packages.version, "of packages")))
        return self._unpack(
            prefix(),
            "tar",
            selection,
            name=f"{where}.tar",
            where=where,
            digest=lambda: packages.digest,
        )

    def discard(self, tree: StoredTree) -> None:
        """Remove a tree that this run unpacked and cannot use, unless another process uses it."""
        os.close(tree.lock)
        entry = tree.root.parent
        if tree.unpacked and not in_use(entry):
            remove(entry)

    def _find(self, sha256: str, selection: Selection) -> StoredTree | None:
        """Return the tree of a tarball if it is complete, and lock it until this process ends."""
        entry = self._entry(sha256, selection)
        try:
            fd = lock_shared(entry)
        except OSError:
            return None
        try:
            marker = _read_marker(entry)
            contents = load_contents((entry / "contents.json").read_bytes())
            tree = StoredTree(
                root=entry / "rocm",
                sha256=marker["sha256"],
                size=marker["size"],
                contents=contents,
                lock=fd,
            )
            good = marker["format"] == _FORMAT and self._survived(entry, tree)
        except (OSError, ValueError, KeyError, TypeError):
            good = False
        if not good:
            os.close(fd)
            remove(entry)
            return None
        os.utime(entry)
        return tree

    def _find_download(
        self, client: Client, url: str, name: str, selection: Selection, sha256: str
    ) -> StoredTree | None:
        """Return the tree of an earlier download from this URL, if it still matches."""
        if not sha256:
            origin = self.root / "origins" / sha256_of(url.encode())
            version, partial = load_version(origin)
            # Without a validator, equal sizes do not prove equal files.
            if version is None or not partial or not (version.etag or version.modified):
                return None
            if RemoteFile(client, url).probe() != version:
                return None
            sha256 = partial
        if tree := self._find(sha256, selection):
            return tree
        kept = self.root / "tarballs" / sha256 / name
        if not kept.is_file():
            return None
        os.utime(kept.parent)
        try:
            return self.from_file(kept, selection, sha256=sha256)
        except (ArchiveError, WrongDigestError):
            self._progress.step(f"remove the damaged {name} from the cache")
            kept.unlink(missing_ok=True)
            return None

    def _fetch(
        self,
        client: Client,
        url: str,
        name: str,
        selection: Selection,
        part: PartFile,
        expected: str,
    ) -> StoredTree:
        remote = RemoteFile(client, url)
        hashed = hashlib.sha256()
        remote.version = part.version or remote.version
        self._progress.step(
            "fetch and unpack"
            f" {name}{f', from byte {part.size} on' if part.size else ''}"
        )
        try:
            tree = self._unpack(
                self._arriving(remote, hashed, part),
                format_of(name),
                selection,
                name=name,
                where=without_credentials(url),
                digest=hashed.hexdigest,
                expected=expected,
                total=lambda: remote.version.size or 0,
                cancel=remote.cancel,
            )
        except (ArchiveError, WrongDigestError):
            part.clear()
            raise
        part.finish(self.root / "tarballs" / tree.sha256 / name)
        part.clear()
        origin = self.root / "origins" / sha256_of(url.encode())
        origin.parent.mkdir(exist_ok=True)
        origin.write_text(remote.version.to_json(sha256=tree.sha256), encoding="utf-8")
        return tree

    def _arriving(self, remote: RemoteFile, hashed: Hash, part: PartFile) -> Chunks:
        """Yield the stored part, then the rest of the download, which is stored."""
        for data in part.first_bytes():
            hashed.update(data)
            yield data
        chunks = remote.chunks(part.size, hashed)
        with closing(part.store(remote, chunks)) as rest:
            yield from rest

    def _unpack(
        self,
        chunks: Chunks,
        compression: str,
        selection: Selection,
        *,
        name: str,
        where: str,
        digest: Callable[[], str],
        expected: str = "",
        total: Callable[[], int] | None = None,
        cancel: Callable[[], None] = lambda: None,
    ) -> StoredTree:
        """Unpack a tarball and keep its tree.

        Args:
            where: URL or path of the tarball, for errors.
            digest: function that returns the sha256 of the tarball after the last
                chunk.
            expected: the required sha256, or empty.
            total: function that returns the bytes of all chunks; None reports no
                progress.
            cancel: function that ends a wait for the next chunk.
        """
        size = 0

        def counted() -> Chunks:
            nonlocal size
            with closing(chunks):
                for chunk in chunks:
                    if not size and bytes(chunk[:1]) == b"<":
                        raise ArchiveError(
                            "It is a web page, not an archive.",
                            hint="Open it in a browser, and give the URL of the file.",
                        )
                    size += len(chunk)
                    if total is not None:
                        self._progress.advance(size, total())
                    yield chunk

        try:
            with self._trees.scratch() as work:
                (work / "rocm").mkdir()
                try:
                    contents = extract(
                        counted(),
                        compression,
                        work / "rocm",
                        wanted=selection.wanted,
                        cancel=cancel,
                    )
                except ArchiveError as error:
                    if (
                        compression == "tar"
                    ):  # made from packages; the error names the damaged one
                        raise
                    raise ArchiveError(
                        f"{where}: {error.message}", hint=error.hint
                    ) from error
                sha256 = digest()
                if expected and sha256 != expected:
                    raise WrongDigestError(
                        f"{where} has sha256 {sha256}, not {expected}.",
                        hint=(
                            "If the file was replaced on purpose, give the new sha256"
                            " or remove it from rocm.lock."
                        ),
                    )
                entry = self._entry(sha256, selection)
                link_device_libraries(work / "rocm", contents)
                (work / "contents.json").write_bytes(dump_contents(contents))
                (work / "boot").write_text(_text(_BOOT))
                marker = {
                    "format": _FORMAT,
                    "name": name,
                    "sha256": sha256,
                    "size": size,
                }
                (work / "tree.json").write_text(json.dumps(marker, indent=1))
                work.chmod(0o755)
                self._trees.publish(work, entry.name)
        except OSError as error:
            error.filename = error.filename or str(
                self.root
            )  # shows, for example, which disk is full
            raise
        tree = self._find(sha256, selection)
        if tree is None:
            raise InputError(
                f"{entry} was removed while it was being written.",
                hint="Run the same command again.",
            )
        return replace(tree, unpacked=True)

    def _entry(self, sha256: str, selection: Selection) -> Path:
        return self._trees.folder(f"{sha256}-{selection.name}")

    def _survived(self, entry: Path, tree: StoredTree) -> bool:
        """Return whether a tree is intact.

        It is checked after each restart, since a crash may lose bytes.
        """
        if _text(entry / "boot") == _text(_BOOT) != "":
            return True
        self._progress.step(
            f"check {entry.name}: the machine restarted after it was written"
        )
        if differences(tree.root, tree.contents):
            return False
        (entry / "boot").write_text(_text(_BOOT))
        return True


def _read_marker(entry: Path) -> dict[str, Any]:
    """Return the content of a tree's tree.json; empty if it is damaged or missing."""
    try:
        return dict(json.loads((entry / "tree.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _read(path: Path, hashed: Hash) -> Generator[bytes]:
    with path.open("rb", buffering=0) as file:
        for data in chunks_of(file):
            hashed.update(data)
            yield data


def _text(path: Path) -> str:
    """Return the text of a file; empty if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
