"""Packages of a ROCm from an apt or dnf repository: found, downloaded and verified."""

from __future__ import annotations

from collections.abc import Sequence

from ci_build.rocm.lock import RocmLock
from ci_build.rocm.packages import Packages
from ci_build.rocm.repositories.apt import AptRepository
from ci_build.rocm.repositories.dnf import DnfRepository
from ci_build.rocm.repositories.openpgp import Verifier, read_keys, require_gpgv
from ci_build.rocm.repositories.resolve import Offer, fetch, resolve, shorten
from ci_build.rocm.request import APT, DNF, RepositoryRequest, RocmSource
from ci_build.rocm.rpms import read_rpm, verify_rpm
from core.errors import InputError, RequestError
from core.http.client import Client, without_user
from core.model import Progress
from core.pip import InputStore, Resolved
from core.process import Runner, without_credentials


def fetch_repository(
    rocm_source: RocmSource,
    pinned: RocmLock | None,
    *,
    store: InputStore,
    client: Client,
    runner: Runner,
    progress: Progress,
) -> tuple[Packages, str]:
    """Return the packages of a repository, and a statement about their signature; empty for those of the lock.

    Raises:
        InputError: a signature, a digest or a date is wrong, or a package is missing.
        MachineError: gpgv is not installed.
    """
    if rocm_source.locked and pinned is not None:
        items = _locked(pinned)
        fetch(client, items, store, progress, pinned.size)
        return _packages(items, store), ""
    request = rocm_source.repository
    if request is None:
        raise RequestError("No key was given for the repository.", hint="Give --rocm-repo and --rocm-repo-key.")
    require_gpgv()
    repository = parse_repository(rocm_source.source)
    with store.scratch() as folder:
        verifier = Verifier(read_keys(request, client), "" if request.key else request.fingerprint, folder, runner)
        progress.step(f"read the list of packages of {without_credentials(rocm_source.source[len(DNF) :])}")
        metadata = repository.read(client, verifier)
        is_dnf = isinstance(repository, DnfRepository)
        offers, missing = resolve(metadata, _roots(request, is_dnf=is_dnf))
        if missing:
            progress.step(f"{len(missing)} requirements belong to the distribution: {shorten(missing)}")
        items = [offer.file for offer in sorted(offers, key=lambda offer: offer.file.filename)]
        fetch(client, items, store, progress, sum(offer.size for offer in offers))
        if metadata.signer or not is_dnf:
            return _packages(items, store), f"its metadata is signed by {metadata.signer}"
        progress.step(f"verify the signatures of {len(items)} packages")
        signers = sorted({_signer(offer, store, verifier) for offer in offers})
        return _packages(items, store), f"its packages are signed by {', '.join(signers)}"


def parse_repository(source: str) -> AptRepository | DnfRepository:
    """Return the repository of a source that `is_repository` accepts."""
    if source.startswith(DNF):
        return DnfRepository(url=source.removeprefix(DNF))
    url, suite, *components = source.removeprefix(APT).split()
    return AptRepository(url=url, suite=suite, components=tuple(components))


def _roots(request: RepositoryRequest, *, is_dnf: bool) -> Sequence[str]:
    return request.packages or (request.dnf_packages if is_dnf else request.apt_packages)


def _signer(offer: Offer, store: InputStore, verifier: Verifier) -> str:
    """Return the fingerprint of the key that signed a package, after a comparison with the unsigned metadata."""
    path = store.path(offer.file)
    rpm = read_rpm(path)
    if rpm.identity != (wanted := (offer.file.name, offer.file.version, offer.arch)):
        raise InputError(
            f"{path.name} is {' '.join(rpm.identity)}, but the repository lists it as {' '.join(wanted)}.",
            hint="The repository was changed; do not use it.",
        )
    return verify_rpm(path, rpm, verifier)


def _locked(pinned: RocmLock) -> list[Resolved]:
    names = pinned.packages.keys()
    if not names or names != pinned.package_urls.keys() or any("/" in name or name in (".", "..") for name in names):
        raise InputError(
            "The lock has no valid files and URLs of its packages.", hint="Remove the lock; the next build writes one."
        )
    return [
        Resolved(
            name=filename,
            version=pinned.package_versions.get(filename, ""),
            filename=filename,
            url=pinned.package_urls[filename],
            sha256=sha256,
            requires_python="",
        )
        for filename, sha256 in sorted(pinned.packages.items())
    ]


def _packages(items: Sequence[Resolved], store: InputStore) -> Packages:
    return Packages(
        version="",
        files={item.filename: store.path(item) for item in items},
        sha256={item.filename: item.sha256 for item in items},
        urls={item.filename: without_user(item.url) for item in items},
        versions={item.filename: item.version for item in items},
    )
