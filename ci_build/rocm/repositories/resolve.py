"""ROCm from an apt or dnf repository: choice of packages, their download, and the reason to trust them.

A repository is signed in one of two ways: its metadata, which has the sha256 of every package (apt; dnf with
repo_gpgcheck), or every package itself (dnf with gpgcheck, as AMD documents it). What is signed in neither way is
refused. Scripts of packages are not run, and packages of the distribution are not fetched: the build needs the files
of ROCm's prefix only.
"""

from __future__ import annotations

import hashlib
import io
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from urllib.parse import quote

from core.errors import ArchiveError, InputError
from core.http.client import Client, canonical
from core.http.download import RemoteFile
from core.model import Progress
from core.pip import InputStore, Resolved
from core.process import without_credentials
from core.unpack.decompress import chunks_of, decompressed

_LARGEST_LIST = 1 << 30
"""Maximum bytes of a decompressed list of packages; AMD's have a few million."""
_COMPRESSIONS = frozenset({"gz", "xz", "zst"})
_MOST_DOWNLOADS = 4
"""Number of packages that are downloaded at the same time."""
_SHOWN = 8
"""Maximum number of names in a message."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """A requirement: a name, and a version with an operator (<, <=, =, >=, >), or no version."""

    name: str
    operator: str = ""
    version: str = ""

    def accepts(self, order: int) -> bool:
        """Return whether a version is accepted that compares to the required one as -1, 0 or 1."""
        return {"<": order < 0, "<=": order <= 0, "=": order == 0, ">=": order >= 0, ">": order > 0}[self.operator]


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """A package of a repository.

    Attributes:
        file: name, version, URL and sha256.
        arch: architecture as the repository spells it.
        size: bytes of the file.
        provides: name -> version, or empty for a name without version; the package's own name included.
        requires: alternatives of each requirement.
    """

    file: Resolved
    arch: str
    size: int
    provides: Mapping[str, str] = field(default_factory=dict)
    requires: tuple[tuple[Need, ...], ...] = ()


Compare = Callable[[str, str], int]
"""Comparison of two versions as -1, 0 or 1, by the rules of the package manager."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RepositoryMetadata:
    """The packages of a repository.

    Attributes:
        signer: fingerprint of the key that signed the metadata, and its suite unless it is the requested one; empty if
            only the packages are signed.
        bare_provides: whether a name without version fulfils a requirement with one, as in RPM.
    """

    offers: tuple[Offer, ...]
    signer: str
    compare: Compare
    bare_provides: bool


def plain_list(data: bytes, where: str) -> bytes:
    """Return a list of packages without the compression that its name ends with.

    Args:
        where: URL of the list without credentials.

    Raises:
        InputError: the data is damaged, or expands to more than 1 GiB.
    """
    ending = where.rpartition(".")[2]
    plain, size = [], 0
    try:
        with decompressed(chunks_of(io.BytesIO(data)), ending if ending in _COMPRESSIONS else "tar") as pieces:
            for piece in pieces:
                size += len(piece)
                if size > _LARGEST_LIST:
                    raise InputError(
                        f"{where} expands to more than {_LARGEST_LIST} bytes.", hint="Check the URL of the repository."
                    )
                plain.append(piece)
    except ArchiveError as error:
        raise InputError(f"Cannot decompress {where}: {error.message}", hint="Try again later.") from error
    return b"".join(plain)


def offered_file(base: str, location: str, name: str, version: str, sha256: str) -> Resolved:
    """Return a package file from its row in the metadata.

    Raises:
        InputError: the row has no SHA-256, or a path that leaves the repository.
    """
    parts = location.split("/")
    if len(sha256) != 64 or not set(sha256) <= set("0123456789abcdef") or {"", ".", ".."} & {*parts}:
        raise InputError(
            f"{without_credentials(base)} offers {name} with an invalid path or sha256: {location!r}, {sha256!r}.",
            hint="Give another repository.",
        )
    url = canonical(f"{base.rstrip('/')}/{quote(location, safe='/~+:%')}")
    return Resolved(name=name, version=version, filename=parts[-1], url=url, sha256=sha256, requires_python="")


def resolve(metadata: RepositoryMetadata, roots: Iterable[str]) -> tuple[tuple[Offer, ...], tuple[str, ...]]:
    """Return the packages with these names and everything that they need, and needed names that nothing provides.

    The newest version of a package is chosen, as a package manager does on an empty system.

    Raises:
        InputError: a root is missing, or two versions of one package are needed.
    """
    providers: dict[str, list[Offer]] = {}
    for offer in metadata.offers:
        for name in {offer.file.name, *offer.provides}:
            providers.setdefault(name, []).append(offer)
    if absent := [name for name in roots if name not in providers]:
        raise InputError(f"The repository has no {', '.join(absent)}.", hint="Give names with --rocm-repo-packages.")
    chosen: dict[str, Offer] = {}
    missing: set[str] = set()
    queue: deque[tuple[Need, ...]] = deque((Need(name=name),) for name in roots)
    while queue:
        alternatives = queue.popleft()
        found = (_provider(metadata, providers, need, chosen) for need in alternatives)
        best = next(filter(None, found), None)
        if best is None:
            missing.add(alternatives[0].name)
        elif (other := chosen.get(best.file.name)) is None:
            chosen[best.file.name] = best
            queue.extend(best.requires)
        elif other is not best:
            raise InputError(
                f"Packages need {best.file.name} in two versions: {other.file.version} and {best.file.version}.",
                hint="Give a repository with one ROCm.",
            )
    return tuple(chosen.values()), tuple(sorted(missing))


def _provider(
    metadata: RepositoryMetadata, providers: Mapping[str, Sequence[Offer]], need: Need, chosen: Mapping[str, Offer]
) -> Offer | None:
    """Return the best package that fulfils a requirement: a chosen one, else one of that name, else the newest."""
    best: Offer | None = None
    for offer in providers.get(need.name, ()):
        own = offer.file.name == need.name
        version = offer.file.version if own else offer.provides.get(need.name, "")
        if need.operator:
            fits = need.accepts(metadata.compare(version, need.version)) if version else metadata.bare_provides
            if not fits:
                continue
        if chosen.get(offer.file.name) is offer:
            return offer
        before = best is not None and best.file.name == need.name
        newer = best is None or metadata.compare(offer.file.version, best.file.version) > 0
        if own > before or (own == before and newer):
            best = offer
    return best


def shorten(names: Sequence[str]) -> str:
    """Return names for a message, with the number of omitted ones."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def fetch(client: Client, items: Sequence[Resolved], store: InputStore, progress: Progress, total: int) -> None:
    """Download the files that the store lacks, and verify their sha256.

    Args:
        total: bytes of all files, for the progress; 0 if unknown.

    Raises:
        InputError: a file is missing on the server, or has another sha256.
    """
    missing = [item for item in items if not store.has(item)]
    if not missing:
        return
    progress.step(f"fetch {len(missing)} packages: {shorten([item.filename for item in missing])}")
    fetched = _Downloads(client, store, progress, total)
    with ThreadPoolExecutor(_MOST_DOWNLOADS, "fetch") as pool:
        try:
            for future in as_completed([pool.submit(fetched.fetch, item) for item in missing]):
                future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            fetched.cancel()


class _Downloads:
    """Parallel downloads of packages; see `fetch`."""

    def __init__(self, client: Client, store: InputStore, progress: Progress, total: int) -> None:
        self._client, self._store, self._progress, self._total = client, store, progress, total
        self._lock, self._done, self._stopped = threading.Lock(), 0, False
        self._open: set[RemoteFile] = set()

    def cancel(self) -> None:
        """End the running downloads."""
        with self._lock:
            self._stopped = True
            for remote in self._open:
                remote.cancel()

    def fetch(self, item: Resolved) -> None:
        """Download one file into the store."""
        remote, hashed = RemoteFile(self._client, item.url), hashlib.sha256()
        with self._lock:
            if self._stopped:
                return
            self._open.add(remote)
        with self._store.scratch() as folder, self._progress.task(item.filename, transient=True) as task:
            fresh = folder / item.filename
            with fresh.open("wb") as file:
                for chunk in remote.chunks(0, hashed):
                    file.write(chunk)
                    task.advance(file.tell(), remote.version.size or 0)
                    with self._lock:
                        self._done += len(chunk)
                        self._progress.advance(self._done, max(self._total, self._done))
            if (found := hashed.hexdigest()) != item.sha256:
                raise InputError(
                    f"{without_credentials(item.url)} has sha256 {found}, not {item.sha256}.",
                    hint="The repository and its metadata differ; try again later, or tell its publisher.",
                )
            self._store.path(item).parent.mkdir(parents=True, exist_ok=True)
            fresh.replace(self._store.path(item))
        with self._lock:
            self._open.discard(remote)
