"""Where a ROCm comes from -> a tree that was looked at, is what was asked for, and is locked.

A source is a URL, a tarball, a folder with a ROCm or with a distribution's packages of it, or an index of pip packages.
What its name tells is compared before a byte is fetched, what its files tell before anything is built.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ci_build.rocm.debs import debs_in, packages_of, prefix_of_debs
from ci_build.rocm.facts import RocmFacts, problems, read_facts, selection
from ci_build.rocm.listing import parse_name
from ci_build.rocm.lock import RocmLock, differences, load_lock, make_lock, write_lock
from ci_build.rocm.packages import Packages
from ci_build.rocm.request import SCHEME, Asked, GfxNames, check_name, check_source, file_name, is_index, is_url
from ci_build.rocm.store import RocmStore, StoredTree
from core.errors import InputError, RequestError
from core.http.client import Client, canonical, sidecar, without_user
from core.model import Progress
from core.unpack.contents import Contents

PackageFinder = Callable[[Asked, Mapping[str, str]], Packages]
"""Brings the packages of an index; those that are locked, file name -> sha256, or the fitting ones where none are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rocm:
    """A ROCm that is what was asked for.

    Attributes:
        root: the prefix; nobody may write there.
        contents: what was unpacked; None for a folder.
        trust: why its bytes are believed to be the right ones, for people.
        notes: what people should know about it.
    """

    root: Path
    contents: Contents | None
    facts: RocmFacts
    lock: RocmLock
    trust: str
    notes: tuple[str, ...]


def obtain(
    asked: Asked,
    gfx: GfxNames,
    store: RocmStore,
    client: Client,
    *,
    progress: Progress,
    find_packages: PackageFinder | None = None,
) -> Rocm:
    """Fetch, unpack, look, compare, lock.

    Args:
        find_packages: brings those of an index.

    Raises:
        RequestError: it is not what was asked for, or not what is locked.
        InputError: it cannot be had, or lacks what a build for the targets needs.
    """
    version = check_name(asked, gfx)
    check_source(asked)
    known = load_lock(asked.lock) if asked.lock else None
    source = _recorded(asked.source)
    if asked.locked and known is not None and known.source != source:
        raise RequestError(
            f"{asked.lock} is of {known.source}, and {source} was asked for.",
            hint="Ask for what is locked, or make a new lock without --locked.",
        )
    pinned = known if known is not None and known.source == source else None
    packages = None
    if is_index(source):
        assert find_packages is not None
        packages, trust = _packages(asked, pinned, find_packages)
        version = packages.version
        stored: StoredTree | None = store.from_packages(packages, selection(full=asked.full))
    elif debs := debs_in(source):
        progress.step(f"look at {len(debs)} packages in {source}")
        packages, trust = packages_of(debs, progress), "its packages are files of this machine"
        stored = store.from_packages(packages, selection(full=asked.full), prefix_of_debs)
    else:
        sha256, trust = _expected(asked, pinned, client)
        stored = _stored(asked, store, client, sha256, source)
    root = Path(source) if stored is None else stored.root
    contents = None if stored is None else stored.contents
    facts, notes = read_facts(root, contents, version, processors=gfx.processors, progress=progress)
    told = parse_name(file_name(asked.source))
    lock = make_lock(
        facts,
        root,
        source=source,
        sha256=stored.sha256 if stored else "",
        size=packages.size if packages else stored.size if stored else 0,
        family=told[0] if told else "",
    )
    if packages is not None:
        lock = replace(lock, packages=dict(sorted(packages.sha256.items())))
    _compare(asked, pinned, lock)
    if asked.targets:
        lacking, worse = problems(facts, asked.targets, gfx.covers)
        if lacking:
            raise InputError(
                f"{source} cannot build what was asked for. {' '.join(lacking)}",
                hint="Name a ROCm for these targets, or other --targets.",
            )
        notes = (*notes, *worse)
    if asked.lock is not None and not asked.locked:
        write_lock(asked.lock, lock)
    return Rocm(root=root, contents=contents, facts=facts, lock=lock, trust=trust, notes=notes)


def _packages(asked: Asked, pinned: RocmLock | None, find: PackageFinder) -> tuple[Packages, str]:
    """The packages, which are the locked ones as far as the lock knows them; and why they are believed to be right."""
    locked = dict(pinned.packages) if pinned is not None else {}
    found = find(asked, locked if asked.locked else {})
    if other := sorted(name for name, digest in found.sha256.items() if locked.get(name, digest) != digest):
        raise InputError(
            f"The index serves other bytes than {asked.lock} has: {', '.join(other)}.",
            hint="Ask who publishes it; if it was replaced on purpose, remove it from the lock.",
        )
    known = bool(found.sha256.keys() & locked.keys())
    return found, f"its packages are those of {asked.lock}" if known else "the index says what their sha256 have to be"


def _recorded(source: str) -> str:
    """The source as a lock names it."""
    if is_index(source):
        return SCHEME + without_user(canonical(source.removeprefix(SCHEME)))
    return without_user(canonical(source)) if is_url(source) else str(Path(source).absolute())


def _expected(asked: Asked, pinned: RocmLock | None, client: Client) -> tuple[str, str]:
    """The sha256 that the tarball has to have, if anybody says, and who says so."""
    if given := asked.sha256.lower():
        return given, "its sha256 is the one that was given"
    if pinned is not None and pinned.sha256 and (asked.locked or is_url(asked.source)):
        return pinned.sha256, f"its sha256 is the one in {asked.lock}"
    if is_url(asked.source):
        beside = client.text(sidecar(canonical(asked.source)), limit=1 << 16) or ""
        if found := _told_beside(beside, file_name(asked.source)):
            return found, "its sha256 is the one that its server names beside it"
        return "", "nobody says what its sha256 has to be: this first one is taken, and locked"
    return "", "it is a file of this machine"


def _told_beside(text: str, name: str) -> str:
    """The sha256 that a sidecar tells, as sha256sum writes it, with or without --tag; of several that of the name."""
    digests = re.compile(r"(?<![0-9a-fA-F])[0-9a-fA-F]{64}(?![0-9a-fA-F])")
    told = [(line, found[0].lower()) for line in text.splitlines() if (found := digests.search(line))]
    ours = told if len(told) == 1 else [row for row in told if name in re.split(r"[\s*()]+", row[0])]
    return ours[0][1] if ours else ""


def _stored(asked: Asked, store: RocmStore, client: Client, sha256: str, source: str) -> StoredTree | None:
    """The unpacked tarball; None for a folder, which is used where it is."""
    chosen, name = selection(full=asked.full), file_name(asked.source)
    if is_url(asked.source):
        return store.from_url(client, canonical(asked.source), name, chosen, sha256=sha256)
    path = Path(source)
    if path.is_file():
        return store.from_file(path, chosen, sha256=sha256)
    if not path.is_dir():
        raise InputError(f"{path} is not there.", hint="Give a URL, a tarball, or the folder of a ROCm.")
    return None


def _compare(asked: Asked, pinned: RocmLock | None, found: RocmLock) -> None:
    """With --locked everything has to be as it was; the bytes behind a URL were compared in any case."""
    if pinned is None or not asked.locked:
        return
    if wrong := differences(pinned, found):
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise RequestError(
            f"{found.source} is not what {asked.lock} says: {'; '.join(wrong[:5])}{more}.",
            hint="Restore that ROCm, or make a new lock without --locked.",
        )
