"""The exact inputs of a night, and a version for its wheels that no other set uses."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import Version

from ci_build.rocm.rocm_request import Folder, RocmRequest, TarballFile
from ci_build.wheelset.published import requirements, resolve
from ci_build.wheelset.source.source_checkouts import folder_commit
from ci_build.wheelset.wheel_request import WheelSetRequest
from core.digests import sha256_of
from core.errors import RequestError
from core.model import BuildRequest, to_json
from core.pip import InputStore
from core.process import Runner
from core.source_request import SourceRequest
from core.versions import package_name, set_version
from promotion.index.publish import read_head
from promotion.nights import list_nights, read_night
from promotion.storage.bucket import Bucket
from promotion.storage.concurrency import map_concurrently
from promotion.storage.object_keys import ReleasedIndex

_OF_THE_SET = (
    "payload",
    "jax_version",
    "rocm_version",
    "python_versions",
    "targets",
    "rocm_version_extra",
    "strip",
    "kernels",
)
_RECENT = 50
"""Number of nights whose versions are not used again."""


def lock_of(request: WheelSetRequest, runner: Runner) -> Mapping[str, Any]:
    """Return the exact inputs of a set as JSON values.

    Options, commits, the ROCm, and published wheels by sha256.

    Equal inputs give equal values on every machine. The version of this program and the
    number of the post release are no inputs.

    Raises:
        RequestError: the ROCm is a folder, whose content has no digest.
        InputError: the index lacks a wheel.
    """
    build = request.build
    return {
        "build": {name: to_json(getattr(build, name)) for name in _OF_THE_SET},
        "source": _source(build.source, runner) if build.source else None,
        "rocm": _rocm(request.rocm) if request.rocm else None,
        "wheels": dict(sorted(_wheels(request, runner))),
    }


def _source(source: SourceRequest, runner: Runner) -> Mapping[str, Any]:
    """Return compiler and commits.

    A checkout in a folder is named by its commit and its changes.
    """
    trees = {
        tree.name: (
            folder_commit(Path(tree.folder), runner)[0] if tree.folder else tree.commit
        )
        for tree in source.sources
    }
    options = {
        name: to_json(getattr(source, name))
        for name in ("compiler", "xla", "jaxlib", "clang", "one_target")
    }
    return {**options, "trees": trees}


def _rocm(rocm: RocmRequest) -> Mapping[str, Any]:
    """Return the origin of a ROCm, and the digest of its lock or of the local tarball."""
    lock = sha256_of(rocm.lock) if rocm.locked and rocm.lock is not None else ""
    source = str(rocm.source)
    sha256 = rocm.sha256
    match rocm.source:
        case Folder() if not lock:
            raise RequestError(
                f"The ROCm of a night is a folder, whose content has no digest: {source}.",
                hint="Give a tarball or an URL, or --locked.",
            )
        case TarballFile(path=path):
            source = path.name
            sha256 = sha256 or sha256_of(path)
    return {
        "source": source,
        "version": rocm.full_version,
        "sha256": sha256,
        "lock": lock,
    }


def _wheels(request: WheelSetRequest, runner: Runner) -> Iterator[tuple[str, str]]:
    """Yield name and sha256 of the published wheels of the set, as pip finds them now."""
    names = {
        canonicalize_name(text.partition("==")[0])
        for text in requirements(request.build)
    }
    store = InputStore(request.cache / "inputs")
    for python in request.build.python_versions:
        log = store.log(f"resolve-{python}")
        for item in resolve(request.build, python, runner, log):
            if item.name in names:
                yield item.filename, item.sha256


def with_free_version(
    request: WheelSetRequest, index: str, bucket: Bucket
) -> WheelSetRequest:
    """Return a request whose version no set of the index has.

    Its post release never decreases for a release of jax.

    A request with a post release is not changed.
    """
    build = request.build
    if build.post_release is not None:
        return request
    post = free_post_release(build, used_versions(bucket, index, build))
    return replace(request, build=replace(build, post_release=post))


def free_post_release(build: BuildRequest, used: Collection[str]) -> int | None:
    """Return the lowest post release that is free and not below the highest used one.

    None is no post release.
    """
    taken = {*map(Version, used)}
    release = Version(build.jax_version).release
    number = max(
        (version.post or 0 for version in taken if version.release == release),
        default=0,
    )
    while True:
        post = number or None
        if Version(set_version(replace(build, post_release=post))) not in taken:
            return post
        number += 1


def used_versions(bucket: Bucket, index: str, build: BuildRequest) -> frozenset[str]:
    """Return the plugin versions in an index and its recent nights, also removed ones."""
    project = package_name("plugin", build.rocm_version.major)
    released = ReleasedIndex(index=index)
    versions: set[str] = set()
    head, entries = read_head(bucket, released)
    for entry in entries.history(head):
        wheels = entry.promoted.wheels if entry.promoted else ()
        versions |= {wheel.version for wheel in wheels if wheel.project == project}
    nights = list_nights(bucket, index)[-_RECENT:]
    for record in map_concurrently(partial(read_night, bucket), nights):
        versions.add(record["version"])
    return frozenset(versions)
