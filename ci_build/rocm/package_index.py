"""ROCm from an index of pip packages, found and downloaded by pip with its own configuration.

The project `rocm` is omitted: it is a source distribution whose setup script would only
name the other packages. The packages of `rocm[libraries,devel]` and the device packages
are therefore requested by name.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from urllib.parse import urlsplit, urlunsplit

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from ci_build.rocm.lock import RocmLock
from ci_build.rocm.pip_rocm import CORE, DEVEL, DEVICE, LIBRARIES, Packages
from ci_build.rocm.rocm_request import PipIndex, RocmRequest
from core.errors import InputError
from core.http.client import Client
from core.model import Progress, RocmPackage
from core.pip import (
    InputStore,
    NothingFitsError,
    Resolved,
    parse_report,
    pip_argv,
    run_pip,
)
from core.process import Runner, without_credentials
from core.rocm_layouts import family_packages
from core.targets import processors_of, sort_key


def newest_version(url: str, runner: Runner) -> str:
    """Return the newest ROCm version of an index, including pre-releases.

    Raises:
        InputError: the index does not answer, or has no ROCm.
    """
    return _resolve(runner, url, CORE)[0].version


def fetch_packages(
    request: RocmRequest,
    index: PipIndex,
    locked: RocmLock | None,
    *,
    client: Client,
    runner: Runner,
    store: InputStore,
    progress: Progress,
) -> Packages:
    """Find the packages, and download the missing ones.

    Args:
        locked: lock with the packages; None searches the index.

    Raises:
        InputError: the index does not answer, lacks the version or packages for the
            targets, or serves files that differ from its digests or the lock.
    """
    url = index.url
    version = request.full_version or newest_version(url, runner)
    if locked is not None:
        packages = tuple(_locked(locked))
    else:
        progress.step(f"find the packages of ROCm {version}")
        _check_devices(request, index, client)
        found = _find(request, index, version, runner)
        packages = tuple(_hashed(found, url, runner, store, progress))
    missing = [item for item in packages if not store.has(item)]
    if missing:
        progress.step(f"fetch {', '.join(item.filename for item in missing)}")
        python = "{}.{}".format(*sys.version_info)
        store.fetch(missing, python, runner, progress.advance, env=_only_index(url))
    return Packages(
        version=packages[0].version if locked else version,
        files={item.filename: store.path(item) for item in packages},
        sha256={item.filename: item.sha256 for item in packages},
        wheels=tuple(_record(item, store) for item in packages),
    )


def find_wheels(
    url: str,
    requirements: Iterable[str],
    *,
    runner: Runner,
    store: InputStore,
    progress: Progress,
) -> tuple[RocmPackage, ...]:
    """Return the wheels of an index that meet requirements.

    Wheels without a digest on their page are downloaded to the store, once.

    Raises:
        InputError: the index does not answer, or has no such wheel.
    """
    progress.step(f"find the wheels of ROCm in {without_credentials(url)}")
    found = _resolve(runner, url, *requirements)
    items = _hashed(found, url, runner, store, progress)
    return tuple(_record(item, store) for item in items)


def _hashed(
    items: Iterable[Resolved],
    url: str,
    runner: Runner,
    store: InputStore,
    progress: Progress,
) -> Iterator[Resolved]:
    """Yield packages with their digest; those without one on their page are downloaded."""
    for item in items:
        if item.sha256:
            yield item
            continue
        progress.step(f"fetch {item.filename}, whose page has no sha256")
        yield store.download(item, runner, progress.advance, _only_index(url))


def _record(item: Resolved, store: InputStore) -> RocmPackage:
    path = store.path(item)
    # A query may have a token.
    parts = urlsplit(item.url)
    return RocmPackage(
        project=item.name,
        filename=item.filename,
        version=item.version,
        url=urlunsplit(parts._replace(query="")),
        sha256=item.sha256,
        size=path.stat().st_size if path.is_file() else 0,
    )


def _check_devices(request: RocmRequest, index: PipIndex, client: Client) -> None:
    """Refuse targets without a device package, according to the index's list of projects.

    An index of one family has no device packages; a server may omit the list.
    """
    page = client.text(index.url) or ""
    devices = set(re.findall(rf"\b{DEVICE}-(gfx[0-9a-f]+)", page))
    missing = set(processors_of(request.targets)) - devices
    if devices and missing:
        raise InputError(
            f"{index} has no {DEVICE} package for {_listed(missing)}.",
            hint=f"It has packages for {_listed(devices)}; give --targets of these.",
        )


def _listed(processors: Iterable[str]) -> str:
    return ", ".join(sorted(processors, key=sort_key))


def _find(
    request: RocmRequest, index: PipIndex, version: str, runner: Runner
) -> tuple[Resolved, ...]:
    """Return the packages of `rocm[libraries,devel,device-…]`.

    Of an index of one family: its libraries, which have the device code.
    """

    def resolve(*names: str) -> tuple[Resolved, ...]:
        return _resolve(runner, index.url, *(f"{name}=={version}" for name in names))

    devices = [f"{DEVICE}-{name}" for name in processors_of(request.targets)]
    try:
        # pip downloads the wheels of an index without metadata one after another, so
        # that the smallest ones, which are the most likely to be missing, come first.
        return resolve(*devices, LIBRARIES, CORE, DEVEL)
    except NothingFitsError as error:
        for family in family_packages(request.targets or None):
            with suppress(NothingFitsError):
                libraries = f"{LIBRARIES}-{family.replace('_', '-').lower()}"
                return resolve(libraries, CORE, DEVEL)
        raise InputError(
            f"{index} has no ROCm {version} for the targets: {error.message}",
            hint="Give another --rocm-version, --targets or --therock-index-url.",
        ) from error


def _only_index(url: str) -> dict[str, str]:
    """Return variables that restrict pip to one index.

    Unlike options, they hide a password in the URL.
    """
    # A blank is an empty list; an empty string would not override pip's configuration.
    return {
        "PIP_INDEX_URL": url,
        "PIP_EXTRA_INDEX_URL": " ",
        "PIP_FIND_LINKS": " ",
        "PIP_NO_INDEX": "false",
    }


def _locked(lock: RocmLock) -> Iterator[Resolved]:
    for filename, sha256 in lock.packages.items():
        try:
            name, version, _, _ = parse_wheel_filename(filename)
        except InvalidWheelFilename as error:
            raise InputError(
                f"The lock of the ROCm lists files that are not wheels: {error}.",
                hint="Remove the lock; the next build writes a new one.",
            ) from error
        yield Resolved(
            name=name,
            version=str(version),
            filename=filename,
            url=lock.urls.get(filename, ""),
            sha256=sha256,
        )


def _resolve(runner: Runner, url: str, *requirements: str) -> tuple[Resolved, ...]:
    """Return the packages that meet requirements, perhaps without a digest.

    pip knows no digest of a file whose page has metadata, but no digest.
    """
    words = (
        "install",
        "--dry-run",
        "--ignore-installed",
        "--quiet",
        "--no-deps",
        "--pre",
        "--only-binary=:all:",
    )
    argv = pip_argv(*words, "--report=-", *requirements)
    try:
        report = run_pip(argv, runner, env=_only_index(url))
        return parse_report(report, hashed=False)
    except InputError as error:
        # Indexes in pip's configuration are not used.
        shown = without_credentials(url)
        error.hint = f"Check the index {shown}; -v prints the output of pip."
        raise
