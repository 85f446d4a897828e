"""The ROCm of a build: downloaded, inspected, compared with the request, and locked.

A source is a URL, a tarball, a folder with a ROCm, an index of pip packages, or a dnf
repository, from which ROCm was installed in the builder image. The source's name is
checked before the download, and its files are checked before the build.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ci_build.rocm.checksum import expected_sha256, transport, trust_notes, trust_text
from ci_build.rocm.facts import RocmFacts, problems, read_facts, selection
from ci_build.rocm.installed import DnfRocm
from ci_build.rocm.lock import RocmLock, differences, load_lock, make_lock, write_lock
from ci_build.rocm.package_index import fetch_packages
from ci_build.rocm.pip_rocm import Packages, prefix_of
from ci_build.rocm.rocm_request import (
    DNF,
    SCHEME,
    RocmSource,
    RocmStorage,
    check_source,
    file_name,
    is_dnf,
    is_index,
    is_url,
)
from ci_build.rocm.rocm_store import RocmStore, StoredTree
from ci_build.rocm.set_lock import locked_source
from ci_build.rocm.tarball_listing import parse_name
from core import cache_entries as cache
from core.errors import CiBuildError, InputError, RequestError
from core.http.client import Client, Connect, canonical, without_user
from core.model import Progress
from core.pip import InputStore
from core.process import Runner, without_credentials
from core.report import Reporter
from core.rocm_trust import ChecksumOrigin, RocmTrust
from core.unpack.tree_contents import Contents
from core.unpack.tree_contents import differences as changes_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Rocm:
    """A ROCm that meets its request.

    Attributes:
        root: the read-only prefix.
        contents: all paths of the tarball or the packages; None for a folder.
        trust: how the files were verified.
        trust_text: reason to trust the files, for the log.
        notes: remarks for the user.
    """

    root: Path
    contents: Contents | None
    facts: RocmFacts
    lock: RocmLock
    trust: RocmTrust
    trust_text: str
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Files:
    """The files of a source.

    Attributes:
        stored: their tree in the cache; None for a folder that is used in place.
        packages: the packages that the tree was unpacked from; None for a tarball or
            folder.
        origin: origin of their checksum.
        problem: reason why the server has no checksum; empty if this does not matter.
    """

    stored: StoredTree | None
    packages: Packages | None = None
    origin: ChecksumOrigin
    problem: str = ""


def obtain_rocm(
    source: RocmSource,
    storage: RocmStorage,
    reporter: Reporter,
    runner: Runner,
    connect: Connect,
    installed: DnfRocm | None = None,
) -> Rocm:
    """Return the ROCm of a checked source, report on it, and keep the cache within its limit.

    Args:
        installed: the ROCm of a dnf repository in its image; None for another source,
            or without an image.
    """
    shown = without_credentials(source.source)
    with reporter.group(f"ROCm: {shown.rpartition('/')[2] or shown}"):
        store = RocmStore(
            storage.cache / "rocm",
            progress=reporter,
            keep_tarballs=storage.keep_tarballs,
        )
        rocm = obtain(
            source,
            store,
            connect(),
            progress=reporter,
            runner=runner,
            installed=installed,
        )
    for note in rocm.notes:
        reporter.warning(note)
    reporter.line(
        f"ROCm {rocm.facts.version}, {rocm.facts.compiler}, in {rocm.root};"
        f" {rocm.trust_text}"
    )
    for entry in cache.collect(storage.cache, limit=storage.limit, kinds=cache.ROCM):
        reporter.line(f"removed {entry.name} from the cache, which was over its limit")
    return rocm


def verify(
    lock: Path,
    storage: RocmStorage,
    reporter: Reporter,
    runner: Runner,
    connect: Connect,
) -> Rocm:
    """Compare every file of a locked ROCm with the lock; download the ROCm if it is missing.

    Raises:
        InputError: the tree was changed.
        RequestError: the ROCm differs from the lock, or the lock is that of a set and
            does not have the ROCm's path.
    """
    if (locked := load_lock(lock)) is None:
        raise RequestError(
            f"{lock} does not exist.",
            hint="Run a build with --therock-path, which writes the lock.",
        )
    source = RocmSource(
        source=locked_source(locked, lock),
        version=locked.version,
        lock=lock,
        locked=True,
    )
    check_source(source)
    rocm = obtain_rocm(source, storage, reporter, runner, connect)
    if rocm.contents is not None and (changed := changes_of(rocm.root, rocm.contents)):
        more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
        raise InputError(
            f"{rocm.root} was changed since it was unpacked:"
            f" {'; '.join(changed[:5])}{more}.",
            hint=f"Remove {rocm.root.parent}; the next run unpacks it again.",
        )
    return rocm


def obtain(
    rocm_source: RocmSource,
    store: RocmStore,
    client: Client,
    *,
    progress: Progress,
    runner: Runner,
    installed: DnfRocm | None = None,
) -> Rocm:
    """Download, unpack, inspect, compare and lock the ROCm of a checked source.

    Args:
        installed: see `obtain_rocm`.

    Raises:
        RequestError: the ROCm differs from the request or the lock.
        InputError: the download failed, or the ROCm lacks files that a build for the
            targets needs.
    """
    locked = load_lock(rocm_source.lock) if rocm_source.lock else None
    url = ""
    source = str(Path(rocm_source.source).absolute())
    if is_dnf(rocm_source.source):
        source = rocm_source.source
    elif is_index(rocm_source.source):
        source = SCHEME + without_user(
            canonical(rocm_source.source.removeprefix(SCHEME))
        )
    elif is_url(rocm_source.source):
        url = canonical(rocm_source.source)
        source = without_user(url)
    if rocm_source.locked and locked is not None and locked.source != source:
        raise RequestError(
            f"{rocm_source.lock} locks {without_credentials(locked.source)}, not"
            f" {without_credentials(source)}.",
            hint="Give the locked source, or another lock.",
        )
    pinned = locked if locked is not None and locked.source == source else None
    if is_dnf(source):
        files = _installed(rocm_source, pinned, store, installed)
    else:
        files = _fetch(
            rocm_source, pinned, source, url, store, client, progress, runner
        )
    try:
        rocm = _inspect(rocm_source, pinned, source, files, progress)
    except CiBuildError:
        if files.stored is not None:
            store.discard(files.stored)
        raise
    if rocm_source.lock is not None and not rocm_source.locked:
        write_lock(rocm_source.lock, rocm.lock)
    return rocm


def _fetch(
    rocm_source: RocmSource,
    pinned: RocmLock | None,
    source: str,
    url: str,
    store: RocmStore,
    client: Client,
    progress: Progress,
    runner: Runner,
) -> _Files:
    """Download and unpack a source; a folder is used in place.

    Args:
        source: the source as the lock records it.
        url: URL of a tarball, with its credentials; empty for other sources.
    """
    chosen = selection(full=rocm_source.full)
    if is_index(source):
        packages, origin = _packages(rocm_source, pinned, store, runner, progress)
        stored = store.from_packages(
            packages, chosen, partial(prefix_of, tuple(packages.files.values()))
        )
        return _Files(stored=stored, packages=packages, origin=origin)
    sha256, origin, problem = expected_sha256(rocm_source, pinned, client, url)
    if url:
        tree = store.from_url(
            client, url, file_name(rocm_source.source), chosen, sha256=sha256
        )
        return _Files(stored=tree, origin=origin, problem=problem)
    if Path(source).is_file():
        return _Files(
            stored=store.from_file(Path(source), chosen, sha256=sha256), origin=origin
        )
    return _Files(stored=None, origin=origin)


def _inspect(
    rocm_source: RocmSource,
    pinned: RocmLock | None,
    source: str,
    files: _Files,
    progress: Progress,
) -> Rocm:
    """Inspect a fetched ROCm, and compare it with the request and the lock.

    Raises as `obtain` does.
    """
    stored = files.stored
    packages = files.packages
    root, contents = (stored.root, stored.contents) if stored else (Path(source), None)
    version = (packages and packages.version) or rocm_source.full_version
    facts, notes = read_facts(root, contents, version, shown=source, progress=progress)
    parts = parse_name(file_name(rocm_source.source))
    lock = make_lock(
        facts,
        root,
        source=source,
        sha256=stored.sha256 if stored else "",
        size=packages.size if packages else stored.size if stored else 0,
        family=parts[0] if parts else "",
        packages=packages,
    )
    if pinned is not None and rocm_source.locked:
        _check_lock(rocm_source, pinned, lock)
    lacking, worse = (
        problems(facts, rocm_source.targets) if rocm_source.targets else ((), ())
    )
    if lacking:
        raise InputError(
            f"{source} cannot be used for this build. {' '.join(lacking)}",
            hint="Give a ROCm for these targets, or other --targets.",
        )
    trust = RocmTrust(checksum=files.origin, transport=transport(source))
    return Rocm(
        root=root,
        contents=contents,
        facts=facts,
        lock=lock,
        trust=trust,
        trust_text=trust_text(rocm_source, files.origin, packages=packages is not None),
        notes=(*notes, *worse, *trust_notes(rocm_source, trust, files.problem)),
    )


def _packages(
    rocm_source: RocmSource,
    pinned: RocmLock | None,
    store: RocmStore,
    runner: Runner,
    progress: Progress,
) -> tuple[Packages, ChecksumOrigin]:
    """Return the packages of an index or lock, and the origin of their digests."""
    locked = dict(pinned.packages) if pinned is not None else {}
    packages = fetch_packages(
        rocm_source,
        locked if rocm_source.locked else {},
        runner=runner,
        store=InputStore(store.root / "tarballs"),
        progress=progress,
    )
    _refuse_replaced(rocm_source, packages, locked)
    is_locked = bool(packages.sha256.keys() & locked.keys())
    return packages, ChecksumOrigin.LOCK if is_locked else ChecksumOrigin.INDEX


def _installed(
    rocm_source: RocmSource,
    pinned: RocmLock | None,
    store: RocmStore,
    installed: DnfRocm | None,
) -> _Files:
    """Return the ROCm that dnf installed in an image.

    Without an image, the one that an earlier run copied.

    Raises:
        RequestError: there is no image, and no copy of the locked ROCm.
    """
    if installed is not None:
        packages = installed.packages()
        origin = ChecksumOrigin.SIGNATURE
    else:
        packages = Packages(
            version="", files={}, sha256=pinned.packages if pinned is not None else {}
        )
        origin = ChecksumOrigin.LOCK

    def prefix() -> Generator[bytes]:
        if installed is None:
            raise RequestError(
                f"The ROCm of {rocm_source.source.removeprefix(DNF)} is not in the"
                " cache.",
                hint=(
                    f"Build a set with --rocm-version={rocm_source.version}, or give"
                    " --therock-path=/opt/rocm."
                ),
            )
        yield from installed.files()

    stored = store.from_packages(packages, selection(full=rocm_source.full), prefix)
    return _Files(stored=stored, packages=packages, origin=origin)


def _refuse_replaced(
    rocm_source: RocmSource, packages: Packages, locked: Mapping[str, str]
) -> None:
    """Refuse a package with the name of a locked one and other content."""
    if other := sorted(
        name
        for name, digest in packages.sha256.items()
        if locked.get(name, digest) != digest
    ):
        raise InputError(
            f"Files of the index differ from {rocm_source.lock}: {', '.join(other)}.",
            hint=(
                "Ask the publisher; if a file was replaced on purpose, remove it from"
                " the lock."
            ),
        )


def _check_lock(rocm_source: RocmSource, pinned: RocmLock, found: RocmLock) -> None:
    if wrong := differences(pinned, found):
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise RequestError(
            f"{found.source} differs from {rocm_source.lock}:"
            f" {'; '.join(wrong[:5])}{more}.",
            hint="Restore the locked ROCm, or give another lock.",
        )
