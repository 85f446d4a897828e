"""The ROCm of a build: downloaded, inspected, compared with the request, and locked.

The source's name is checked before the download, and its files before the build.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from pathlib import Path

from ci_build.rocm.checksum import expected_sha256, transport, trust_notes, trust_text
from ci_build.rocm.facts import RocmFacts, check_targets, read_facts, selection
from ci_build.rocm.installed import DnfRocm
from ci_build.rocm.lock import RocmLock, differences, make_lock, write_lock
from ci_build.rocm.package_index import fetch_packages
from ci_build.rocm.pip_rocm import Packages, prefix_of
from ci_build.rocm.rocm_request import (
    DNF,
    PIP,
    DnfRepository,
    Folder,
    PipIndex,
    RocmRequest,
    RocmSource,
    RocmStorage,
    TarballFile,
    TarballUrl,
)
from ci_build.rocm.rocm_store import RocmStore, StoredTree
from ci_build.rocm.set_lock import locked_request
from core import cache_entries as cache
from core.errors import CiBuildError, InputError, RequestError
from core.frozen import frozen
from core.http.client import Client, Connect, canonical, without_user
from core.model import Progress, RocmPackage
from core.pip import InputStore
from core.process import Runner, without_credentials
from core.report import Reporter
from core.rocm_servers import naming_successor
from core.rocm_trust import ChecksumOrigin, RocmTrust
from core.unpack.tree_contents import Contents
from core.unpack.tree_contents import differences as changes_of

_MOST_SHOWN = 5
"""Differences of a tree or a lock that a message shows."""


@frozen
class Rocm:
    """A ROCm that meets its request.

    Attributes:
        root: the read-only prefix.
        contents: all paths of the tarball or the packages; None for a folder.
        trust: how the files were verified.
        trust_text: reason to trust the files, for the log.
        wheels: wheels of an index that the ROCm was unpacked from; otherwise empty.
        notes: remarks for the user.
    """

    root: Path
    contents: Contents | None
    facts: RocmFacts
    lock: RocmLock
    trust: RocmTrust
    trust_text: str
    notes: tuple[str, ...]
    wheels: tuple[RocmPackage, ...] = ()


@frozen
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
    request: RocmRequest,
    storage: RocmStorage,
    reporter: Reporter,
    runner: Runner,
    connect: Connect,
    installed: DnfRocm | None = None,
) -> Rocm:
    """Return the ROCm of a checked request, and keep the cache within its limit.

    Args:
        installed: the ROCm of a dnf repository in its image; None for another source,
            or without an image.
    """
    shown = str(request.source)
    with reporter.group(f"ROCm: {shown.rpartition('/')[2] or shown}"):
        store = RocmStore(storage.cache / "rocm", progress=reporter)
        rocm = obtain(
            request,
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
        RequestError: the ROCm differs from the lock, or the lock was published with a
            set and omits the ROCm's local path.
    """
    request = locked_request(lock)
    rocm = obtain_rocm(request, storage, reporter, runner, connect)
    if rocm.contents is not None and (changed := changes_of(rocm.root, rocm.contents)):
        raise InputError(
            f"{rocm.root} was changed since it was unpacked: {_some(changed)}.",
            hint=f"Remove {rocm.root.parent}; the next run unpacks it again.",
        )
    return rocm


def _some(lines: Sequence[str]) -> str:
    more = len(lines) - _MOST_SHOWN
    shown = "; ".join(lines[:_MOST_SHOWN])
    return f"{shown} and {more} more" if more > 0 else shown


def obtain(
    request: RocmRequest,
    store: RocmStore,
    client: Client,
    *,
    progress: Progress,
    runner: Runner,
    installed: DnfRocm | None = None,
) -> Rocm:
    """Download, unpack, inspect, compare and lock the ROCm of a checked request.

    Args:
        installed: see `obtain_rocm`.

    Raises:
        RequestError: the ROCm differs from the request or the lock.
        InputError: the download failed, or the ROCm lacks files that a build for the
            targets needs.
    """
    recorded = _recorded(request.source)
    pinned = request.pinned
    if pinned is not None and pinned.source != recorded:
        if request.locked:
            raise RequestError(
                f"{request.lock} locks {without_credentials(pinned.source)}, not"
                f" {without_credentials(recorded)}.",
                hint="Give the locked source, or another lock.",
            )
        # The lock is of another ROCm, which this one replaces.
        pinned = None
    with naming_successor(getattr(request.source, "url", "")):
        files = _fetch(request, pinned, store, client, progress, runner, installed)
    try:
        rocm = _inspect(request, pinned, recorded, files, progress)
    except CiBuildError:
        if files.stored is not None:
            store.discard(files.stored)
        raise
    if request.lock is not None and not request.locked:
        write_lock(request.lock, rocm.lock)
    return rocm


def _recorded(source: RocmSource) -> str:
    """Return the text of a source in the lock, without user and password."""
    match source:
        case TarballUrl(url=url):
            return without_user(canonical(url))
        case PipIndex(url=url):
            return PIP + without_user(canonical(url))
        case DnfRepository(url=url):
            return DNF + url
        case TarballFile(path=path) | Folder(path=path):
            return str(path.absolute())


def _fetch(
    request: RocmRequest,
    pinned: RocmLock | None,
    store: RocmStore,
    client: Client,
    progress: Progress,
    runner: Runner,
    installed: DnfRocm | None,
) -> _Files:
    """Download and unpack a source; a folder is used in place."""
    chosen = selection(full=request.full)
    match request.source:
        case PipIndex() as index:
            packages, origin = _packages(
                request, index, pinned, store, client, runner, progress
            )
            wheels = tuple(packages.files.values())
            stored = store.from_packages(packages, chosen, partial(prefix_of, wheels))
            return _Files(stored=stored, packages=packages, origin=origin)
        case DnfRepository() as repository:
            packages, origin = _installed(pinned, installed)
            files = _copied(request, repository, installed)
            stored = store.from_packages(packages, chosen, files)
            return _Files(stored=stored, packages=packages, origin=origin)
        case TarballUrl(url=url, name=name):
            url = canonical(url)
            sha256, origin, problem = expected_sha256(request, pinned, client, url)
            tree = store.from_url(client, url, name, chosen, sha256=sha256)
            return _Files(stored=tree, origin=origin, problem=problem)
        case TarballFile(path=path):
            sha256, origin, _ = expected_sha256(request, pinned, client, "")
            tree = store.from_file(path.absolute(), chosen, sha256=sha256)
            return _Files(stored=tree, origin=origin)
        case Folder():
            _, origin, _ = expected_sha256(request, pinned, client, "")
            return _Files(stored=None, origin=origin)


def _inspect(
    request: RocmRequest,
    pinned: RocmLock | None,
    recorded: str,
    files: _Files,
    progress: Progress,
) -> Rocm:
    """Inspect a fetched ROCm, and compare it with the request and the lock.

    Raises as `obtain` does.
    """
    stored = files.stored
    packages = files.packages
    root, contents = Path(recorded), None
    sha256 = ""
    size = 0
    if stored is not None:
        root, contents = stored.root, stored.contents
        sha256 = stored.sha256
        size = packages.size if packages else stored.size
    source = request.source
    family = source.family if isinstance(source, TarballUrl | TarballFile) else ""
    version = (packages and packages.version) or request.full_version
    facts, notes = read_facts(
        root, contents, version, shown=recorded, progress=progress
    )
    lock = make_lock(
        facts,
        root,
        source=recorded,
        sha256=sha256,
        size=size,
        family=family,
        packages=packages,
    )
    required = pinned if request.locked else None
    if required is not None and (wrong := differences(required, lock)):
        raise RequestError(
            f"{recorded} differs from {request.lock}: {_some(wrong)}.",
            hint="Restore the locked ROCm, or give another lock.",
        )
    lesser = check_targets(
        root, facts.kernels, facts.version, request.targets, shown=recorded
    )
    trust = RocmTrust(checksum=files.origin, transport=transport(source))
    return Rocm(
        root=root,
        contents=contents,
        facts=facts,
        lock=lock,
        trust=trust,
        trust_text=trust_text(request, files.origin, packages=packages is not None),
        notes=(*notes, *lesser, *trust_notes(request, trust, files.problem)),
        wheels=packages.wheels if packages else (),
    )


def _packages(
    request: RocmRequest,
    index: PipIndex,
    pinned: RocmLock | None,
    store: RocmStore,
    client: Client,
    runner: Runner,
    progress: Progress,
) -> tuple[Packages, ChecksumOrigin]:
    """Return the packages of an index or lock, and the origin of their digests.

    Raises:
        InputError: a package has the name of a locked one and other content.
    """
    locked = pinned.packages if pinned is not None else {}
    packages = fetch_packages(
        request,
        index,
        pinned if request.locked and locked else None,
        client=client,
        runner=runner,
        store=InputStore(store.root / "tarballs"),
        progress=progress,
    )
    replaced = [
        name
        for name, digest in sorted(packages.sha256.items())
        if locked.get(name, digest) != digest
    ]
    if replaced:
        raise InputError(
            f"Files of the index differ from {request.lock}: {', '.join(replaced)}.",
            hint=(
                "Ask the publisher; if a file was replaced on purpose, remove it from"
                " the lock."
            ),
        )
    is_locked = bool(packages.sha256.keys() & locked.keys())
    return packages, ChecksumOrigin.LOCK if is_locked else ChecksumOrigin.INDEX


def _installed(
    pinned: RocmLock | None, installed: DnfRocm | None
) -> tuple[Packages, ChecksumOrigin]:
    """Return the packages that dnf installed in an image, or else the locked ones."""
    if installed is not None:
        return installed.packages(), ChecksumOrigin.SIGNATURE
    sha256 = pinned.packages if pinned is not None else {}
    return Packages(version="", files={}, sha256=sha256), ChecksumOrigin.LOCK


def _copied(
    request: RocmRequest, repository: DnfRepository, installed: DnfRocm | None
) -> Callable[[], Generator[bytes]]:
    """Return a function that copies the ROCm of an image, if the cache does not have it."""

    def files() -> Generator[bytes]:
        if installed is None:
            raise RequestError(
                f"The ROCm of {repository.url} is not in the cache.",
                hint=(
                    f"Build a set with --rocm-version={request.version}, or give"
                    " --therock-path=/opt/rocm."
                ),
            )
        yield from installed.files()

    return files
