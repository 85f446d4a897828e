"""The ROCm of a build: downloaded, inspected, compared with the request, and locked.

A source is a URL, a tarball, a folder with a ROCm or with ROCm packages of a distribution, or an index of pip packages.
The source's name is checked before the download, and its files are checked before the build.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ci_build.rocm.debs import packages_of, prefix_of_debs
from ci_build.rocm.facts import RocmFacts, problems, read_facts, selection
from ci_build.rocm.listing import parse_name
from ci_build.rocm.lock import RocmLock, differences, load_lock, make_lock, write_lock
from ci_build.rocm.package_index import fetch_packages
from ci_build.rocm.packages import Packages
from ci_build.rocm.request import (
    SCHEME,
    RocmSource,
    RocmStorage,
    check_source,
    debs_in,
    file_name,
    is_index,
    is_url,
)
from ci_build.rocm.store import RocmStore
from core import cache
from core.errors import InputError, RequestError
from core.http.client import Client, Connect, canonical, sidecar, without_user
from core.model import Progress
from core.pip import InputStore
from core.process import Runner, without_credentials
from core.report import Reporter
from core.unpack.contents import Contents
from core.unpack.contents import differences as changes_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Rocm:
    """A ROCm that meets its request.

    Attributes:
        root: the read-only prefix.
        contents: all paths of the tarball or the packages; None for a folder.
        trust: reason to trust the files, for the log.
        notes: remarks for the user.
    """

    root: Path
    contents: Contents | None
    facts: RocmFacts
    lock: RocmLock
    trust: str
    notes: tuple[str, ...]


def obtain_rocm(source: RocmSource, storage: RocmStorage, reporter: Reporter, runner: Runner, connect: Connect) -> Rocm:
    """Return the ROCm of a checked source, report on it, and keep the cache within its limit."""
    with reporter.group(f"ROCm: {source.source.rpartition('/')[2] or without_credentials(source.source)}"):
        store = RocmStore(storage.cache / "rocm", progress=reporter, keep_tarballs=storage.keep_tarballs)
        rocm = obtain(source, store, connect(), progress=reporter, runner=runner)
    for note in rocm.notes:
        reporter.warning(note)
    reporter.line(f"ROCm {rocm.facts.version}, {rocm.facts.compiler}, in {rocm.root}; {rocm.trust}")
    for entry in cache.collect(storage.cache, limit=storage.limit, kinds=cache.ROCM):
        reporter.line(f"removed {entry.name} from the cache, which was over its limit")
    return rocm


def verify(lock: Path, storage: RocmStorage, reporter: Reporter, runner: Runner, connect: Connect) -> Rocm:
    """Compare every file of a locked ROCm with the lock; download the ROCm if it is missing.

    Raises:
        InputError: the tree was changed.
        RequestError: the ROCm differs from the lock.
    """
    if (locked := load_lock(lock)) is None:
        raise RequestError(f"{lock} does not exist.", hint="Run a build with --therock-path, which writes the lock.")
    source = RocmSource(source=locked.source, version=locked.version, lock=lock, locked=True)
    check_source(source)
    rocm = obtain_rocm(source, storage, reporter, runner, connect)
    if rocm.contents is not None and (changed := changes_of(rocm.root, rocm.contents)):
        more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
        raise InputError(
            f"{rocm.root} was changed since it was unpacked: {'; '.join(changed[:5])}{more}.",
            hint=f"Remove {rocm.root.parent}; the next run unpacks it again.",
        )
    return rocm


def obtain(rocm_source: RocmSource, store: RocmStore, client: Client, *, progress: Progress, runner: Runner) -> Rocm:
    """Download, unpack, inspect, compare and lock the ROCm of a checked source.

    Raises:
        RequestError: the ROCm differs from the request or the lock.
        InputError: the download failed, or the ROCm lacks files that a build for the targets needs.
    """
    version, chosen = rocm_source.full_version, selection(full=rocm_source.full)
    locked = load_lock(rocm_source.lock) if rocm_source.lock else None
    name, url, source = file_name(rocm_source.source), "", str(Path(rocm_source.source).absolute())
    if is_index(rocm_source.source):
        source = SCHEME + without_user(canonical(rocm_source.source.removeprefix(SCHEME)))
    elif is_url(rocm_source.source):
        url = canonical(rocm_source.source)
        source = without_user(url)
    if rocm_source.locked and locked is not None and locked.source != source:
        raise RequestError(
            f"{rocm_source.lock} locks {locked.source}, not {source}.",
            hint="Give the locked source, or write a new lock without --locked.",
        )
    pinned = locked if locked is not None and locked.source == source else None
    packages, stored = None, None
    if is_index(source):
        packages, trust = _packages(rocm_source, pinned, store, runner, progress)
        version = packages.version
        stored = store.from_packages(packages, chosen)
    elif debs := debs_in(source):
        progress.step(f"read {len(debs)} packages in {source}")
        packages, trust = packages_of(debs, progress), "its packages are local files"
        stored = store.from_packages(packages, chosen, prefix_of_debs)
    else:
        sha256, trust = _expected(rocm_source, pinned, client, url)
        if url:
            stored = store.from_url(client, url, name, chosen, sha256=sha256)
        elif Path(source).is_file():
            stored = store.from_file(Path(source), chosen, sha256=sha256)
        elif not Path(source).is_dir():
            raise InputError(f"{source} does not exist.", hint="Give a URL, a tarball, or the folder of a ROCm.")
    # A folder is used in place.
    root, contents = (stored.root, stored.contents) if stored else (Path(source), None)
    facts, notes = read_facts(root, contents, version, progress=progress)
    parts = parse_name(name)
    lock = make_lock(
        facts,
        root,
        source=source,
        sha256=stored.sha256 if stored else "",
        size=packages.size if packages else stored.size if stored else 0,
        family=parts[0] if parts else "",
        packages=packages.sha256 if packages else {},
    )
    if pinned is not None and rocm_source.locked:
        _check_lock(rocm_source, pinned, lock)
    lacking, worse = problems(facts, rocm_source.targets) if rocm_source.targets else ((), ())
    if lacking:
        raise InputError(
            f"{source} cannot be used for this build. {' '.join(lacking)}",
            hint="Give a ROCm for these targets, or other --targets.",
        )
    if rocm_source.lock is not None and not rocm_source.locked:
        write_lock(rocm_source.lock, lock)
    return Rocm(root=root, contents=contents, facts=facts, lock=lock, trust=trust, notes=(*notes, *worse))


def _packages(
    rocm_source: RocmSource, pinned: RocmLock | None, store: RocmStore, runner: Runner, progress: Progress
) -> tuple[Packages, str]:
    """Return the packages of an index, or of the lock with --locked, and the reason to trust them."""
    locked = dict(pinned.packages) if pinned is not None else {}
    packages = fetch_packages(
        rocm_source,
        locked if rocm_source.locked else {},
        runner=runner,
        store=InputStore(store.root / "tarballs"),
        progress=progress,
    )
    if other := sorted(name for name, digest in packages.sha256.items() if locked.get(name, digest) != digest):
        raise InputError(
            f"Files of the index differ from {rocm_source.lock}: {', '.join(other)}.",
            hint="Ask the publisher; if a file was replaced on purpose, remove it from the lock.",
        )
    is_locked = bool(packages.sha256.keys() & locked.keys())
    return (
        packages,
        f"its packages match {rocm_source.lock}" if is_locked else "its packages match the digests of the index",
    )


def _expected(rocm_source: RocmSource, pinned: RocmLock | None, client: Client, url: str) -> tuple[str, str]:
    """Return the required sha256 of the tarball, or empty, and its origin."""
    if given := rocm_source.sha256.lower():
        return given, "its sha256 matches the given one"
    if pinned is not None and pinned.sha256 and (rocm_source.locked or url):
        return pinned.sha256, f"its sha256 matches {rocm_source.lock}"
    if url:
        beside = client.text(sidecar(url), limit=1 << 16) or ""
        if found := _sidecar_digest(beside, file_name(rocm_source.source)):
            return found, "its sha256 matches the sidecar file on the server"
        return "", "its sha256 is unverified, since none was given or published; the lock pins it"
    return "", "it is a local file"


def _sidecar_digest(text: str, name: str) -> str:
    """Return the sha256 for a file name in the output of `sha256sum` or `sha256sum --tag`; empty if there is none.

    If the output has only one digest, the file name does not matter.
    """
    digests = re.compile(r"(?<![0-9a-fA-F])[0-9a-fA-F]{64}(?![0-9a-fA-F])")
    lines = [(line, match[0].lower()) for line in text.splitlines() if (match := digests.search(line))]
    ours = lines if len(lines) == 1 else [row for row in lines if name in re.split(r"[\s*()]+", row[0])]
    return ours[0][1] if ours else ""


def _check_lock(rocm_source: RocmSource, pinned: RocmLock, found: RocmLock) -> None:
    if wrong := differences(pinned, found):
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise RequestError(
            f"{found.source} differs from {rocm_source.lock}: {'; '.join(wrong[:5])}{more}.",
            hint="Restore the locked ROCm, or write a new lock without --locked.",
        )
