"""Wheels of the ROCm that a set is installed with: their record, and the words about them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from ci_build.rocm.rocm_request import PipIndex
from ci_build.wheelset.wheel_request import WheelSetRequest
from core.model import Progress, RocmPackage, WheelSet
from core.pip import InputStore
from core.process import Runner
from core.rocm_releases import rocm_extras
from core.rocm_servers import package_server
from promotion.index.rocm_packages import extras_of


def index_url(request: WheelSetRequest) -> str:
    """Return the index of a set's ROCm, perhaps with a password; empty without wheels."""
    source = request.rocm.source if request.rocm else None
    if isinstance(source, PipIndex):
        return source.url
    server = package_server(str(request.build.rocm_version))
    return server.url if server else ""


def record_wheels(
    request: WheelSetRequest,
    unpacked: Iterable[RocmPackage],
    runner: Runner,
    progress: Progress,
) -> tuple[RocmPackage, ...]:
    """Return the wheels that the extras of a set require; empty if they are not recorded.

    Args:
        unpacked: wheels that the build's ROCm was unpacked from. Without all required
            ones from a server that an index may link to, wheels are searched if the
            request says so.

    Raises:
        InputError: the index does not answer, or lacks a wheel.
    """
    # Start-up time: a dry run records nothing.
    from promotion.index.rocm_packages import link_problems

    build = request.build
    extras = rocm_extras(build.rocm_version, build.targets)
    needs = tuple(dict.fromkeys(chain.from_iterable(extras.values())))
    known = {}
    for wheel in unpacked:
        if not [*link_problems([wheel])]:
            known[wheel.project] = wheel
    projects = [need.partition("==")[0] for need in needs]
    if known.keys() >= {*projects}:
        return tuple(known[project] for project in projects)
    if not request.hash_rocm:
        return ()
    # Start-up time: this module imports the HTTP client.
    from ci_build.rocm.package_index import find_wheels

    store = InputStore(request.storage.cache / "rocm" / "tarballs")
    url = index_url(request)
    return find_wheels(url, needs, runner=runner, store=store, progress=progress)


def rocm_line(wheel_set: WheelSet) -> str:
    """Return a sentence on the ROCm that a set needs at run time."""
    rocm = f"ROCm {wheel_set.rocm_version}"
    extras = [*extras_of(wheel_set.wheels)]
    if not extras:
        return f"AMD has no wheels of {rocm}: install its system packages."
    others = f" Other GPUs: {', '.join(extras[1:])}." if extras[1:] else ""
    if wheel_set.rocm_packages:
        return (
            f"{extras[0]} installs {rocm}, whose wheels have recorded digests.{others}"
        )
    return (
        f"{extras[0]} installs {rocm}, pinned by version only: --hash-rocm records the"
        f" digests of its wheels.{others}"
    )
