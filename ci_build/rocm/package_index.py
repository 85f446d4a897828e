"""ROCm from an index of pip packages, found and downloaded by pip with its own configuration.

The project `rocm` is omitted: it is a source distribution whose setup script would only
name the other packages. The packages of `rocm[libraries,devel]` and the device packages
are therefore requested by name.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from ci_build.rocm.pip_rocm import CORE, DEVEL, DEVICE, LIBRARIES, Packages
from ci_build.rocm.rocm_request import PipIndex, RocmRequest
from core.errors import InputError
from core.model import Progress
from core.pip import (
    InputStore,
    NothingFitsError,
    Resolved,
    parse_report,
    pip_argv,
    run_pip,
)
from core.process import Runner
from core.rocm_layouts import family_packages


def newest_version(url: str, runner: Runner) -> str:
    """Return the newest ROCm version of an index, including pre-releases.

    Raises:
        InputError: the index does not answer, or has no ROCm.
    """
    return _resolve(runner, url, CORE)[0].version


def fetch_packages(
    request: RocmRequest,
    index: PipIndex,
    locked: Mapping[str, str],
    *,
    runner: Runner,
    store: InputStore,
    progress: Progress,
) -> Packages:
    """Find the packages, and download the missing ones.

    Args:
        locked: file name -> sha256 of locked packages; empty searches the index.

    Raises:
        InputError: the index does not answer, lacks the version or its libraries, or
            serves files that differ from its digests or the lock.
    """
    url = index.url
    version = request.full_version or newest_version(url, runner)
    if locked:
        packages = [_of_lock(name, sha256) for name, sha256 in sorted(locked.items())]
    else:
        progress.step(f"find the packages of ROCm {version}")
        packages = [*_resolve(runner, url, f"{CORE}=={version}", f"{DEVEL}=={version}")]
        # An index may have only some of these packages.
        libraries = [LIBRARIES]
        for family in family_packages(request.targets or None):
            libraries.append(f"{LIBRARIES}-{family.replace('_', '-').lower()}")
        devices = dict.fromkeys(
            f"{DEVICE}-{target.processor}" for target in request.targets
        )
        offered = list[Resolved]()
        for name in libraries:
            offered += _if_offered(runner, url, f"{name}=={version}")
        if not offered:
            raise InputError(
                f"The index has no libraries of ROCm {version}: neither"
                f" {' nor '.join(libraries)}.",
                hint=(
                    "Give the index of a family that serves the targets, or another"
                    " --rocm-version."
                ),
            )
        packages += offered
        for name in devices:
            packages += _if_offered(runner, url, f"{name}=={version}")
    missing = [item for item in packages if not store.has(item)]
    if missing:
        progress.step(f"fetch {', '.join(item.filename for item in missing)}")
        python = "{}.{}".format(*sys.version_info)
        store.fetch(missing, python, runner, progress.advance, env=_only_index(url))
    return Packages(
        version=packages[0].version if locked else version,
        files={item.filename: store.path(item) for item in packages},
        sha256={item.filename: item.sha256 for item in packages},
    )


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


def _of_lock(filename: str, sha256: str) -> Resolved:
    try:
        name, version, _, _ = parse_wheel_filename(filename)
    except InvalidWheelFilename as error:
        raise InputError(
            f"The lock of the ROCm lists files that are not wheels: {error}.",
            hint="Remove the lock; the next build writes a new one.",
        ) from error
    return Resolved(
        name=name,
        version=str(version),
        filename=filename,
        url="",
        sha256=sha256,
        requires_python="",
    )


def _resolve(runner: Runner, url: str, *requirements: str) -> tuple[Resolved, ...]:
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
    return parse_report(run_pip(argv, runner, env=_only_index(url)))


def _if_offered(runner: Runner, url: str, requirement: str) -> tuple[Resolved, ...]:
    """Return the package, or nothing if the index does not have it."""
    try:
        return _resolve(runner, url, requirement)
    except NothingFitsError:
        return ()
