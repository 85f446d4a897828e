"""Content that this program would write for recorded wheels and sets.

The gate `inspection` compares it with theirs.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.pylock import Package, Pylock, PylockValidationError
from packaging.utils import parse_wheel_filename

from core.errors import BucketError, CiBuildError
from core.model import (
    CONSTRAINTS,
    PYLOCK,
    ROCM_LOCK,
    SBOM,
    SHA256SUMS,
    BuildRequest,
    GfxTarget,
    Payload,
    RocmVersion,
    WheelSet,
)
from core.pip import Resolved
from core.steps import tool_versions
from core.versions import parse_package_name
from core.wheelset import sha256sums
from pjrt import jax_wheels
from promotion.gates.recipe_check import SET, ExpectedSet
from promotion.gates.set_record import read_build_info
from promotion.stage import read_staged
from promotion.storage.bucket import AbsentError, Bucket
from promotion.storage.object_keys import StagedSet
from wheelkit.inspect.metadata_rules import JAX_ROCM
from wheelkit.repair.repair_plan import RepairPlan

_NOT_WRITTEN = (CiBuildError, ValueError, KeyError, TypeError, AttributeError)
"""Errors of recorded values that this program would not have written."""


def expected_set(
    wheel_set: WheelSet,
    infos: Mapping[str, Mapping[str, Any]],
    read: Callable[[str], bytes],
) -> ExpectedSet:
    """Return the content that this program writes for a recorded set.

    Args:
        infos: file name of a wheel -> its build information.
        read: returns the content of a file of the set.

    Raises:
        BucketError: the bucket of the set cannot be read.
    """
    plans = {}
    files: Mapping[str, str] = {}
    problems = {}
    for wheel in wheel_set.wheels:
        if not JAX_ROCM.fullmatch(wheel.name):
            continue
        try:
            plan = wheel_plan(wheel.name, infos.get(wheel.filename, {}))
        except _NOT_WRITTEN as problem:
            problems[wheel.filename] = f"{type(problem).__name__}: {problem}"
        else:
            if plan is not None:
                plans[wheel.filename] = plan
    program = tool_versions()["ci_build"]
    if wheel_set.tools.get("ci_build") == program:
        try:
            files = files_of_set(wheel_set, read)
        except _NOT_WRITTEN as problem:
            unreadable = isinstance(problem, BucketError)
            if unreadable and not isinstance(problem, AbsentError):
                raise
            problems[SET] = f"{type(problem).__name__}: {problem}"
    return ExpectedSet(program=program, plans=plans, files=files, problems=problems)


def expected_of_staged(bucket: Bucket, staged: StagedSet) -> ExpectedSet:
    """Return the content that this program writes for a staged set.

    Raises:
        BucketError: the bucket cannot be read.
    """
    wheel_set = read_staged(bucket, staged)
    infos = {}
    for wheel in wheel_set.wheels:
        # The gate reports wheels that are missing.
        with suppress(AbsentError), bucket.open(staged.file(wheel.filename)) as file:
            infos[wheel.filename] = read_build_info(file)
    return expected_set(wheel_set, infos, lambda name: bucket.get(staged.file(name)))


def wheel_plan(project: str, info: Mapping[str, Any]) -> RepairPlan | None:
    """Return the repair plan of a wheel from its build information.

    None for a wheel without a recorded recipe.

    Raises:
        CiBuildError, KeyError, TypeError, ValueError: no recipe writes such build
        information.
    """
    named = parse_package_name(project)
    if named is None:
        return None
    names = info["requested_targets"]
    request = BuildRequest(
        payload=Payload.PUBLISHED,  # the recipe does not depend on it
        jax_version=info["jax_version"],
        rocm_version=RocmVersion(text=info["rocm_version"]),
        python_versions=(),
        targets=None if names is None else tuple(map(GfxTarget.parse, names)),
        strip=info["stripped"],
    )
    return jax_wheels.repair_plan(
        named[0], request, info["version"], info.get("sources")
    )


def files_of_set(wheel_set: WheelSet, read: Callable[[str], bytes]) -> dict[str, str]:
    """Return name -> text of each file derived from wheels.json and locked dependencies.

    Args:
        read: returns the content of a file of the set.

    Raises:
        ValueError, KeyError, TypeError: the lock file violates PEP 751, or has a
            dependency that is no wheel of a URL; or a set built from source has no
            rocm.lock.
        FormatError: rocm.lock is not a lock.
    """
    # Start-up time: importing the library of bills of materials takes longer than the
    # comparison.
    from ci_build.rocm.lock import parse_lock
    from ci_build.rocm.set_lock import set_lock
    from ci_build.wheelset import sbom, set_files

    texts = {
        CONSTRAINTS: set_files.constraints(wheel_set),
        SHA256SUMS: sha256sums(wheel_set).decode(),
    }
    lock = None
    source = wheel_set.request.get("source")
    if source and source["rocm"]:
        if ROCM_LOCK not in wheel_set.files:
            raise ValueError(f"{ROCM_LOCK} is missing")
        lock = parse_lock(read(ROCM_LOCK), ROCM_LOCK)
        texts[ROCM_LOCK] = set_lock(lock).decode()
    if PYLOCK in wheel_set.files:
        resolved = _resolved(read(PYLOCK).decode(), wheel_set)
        texts |= {
            PYLOCK: set_files.pylock(wheel_set, resolved),
            SBOM: sbom.sbom(wheel_set, resolved, lock),
        }
    return texts


def _resolved(lock: str, wheel_set: WheelSet) -> dict[str, list[Resolved]]:
    """Return Python version -> the dependencies in a lock file that are not wheels of the set."""
    own = {wheel.name for wheel in wheel_set.wheels}
    own |= {package.project for package in wheel_set.rocm_packages}
    try:
        packages = Pylock.from_dict(tomllib.loads(lock)).packages
    except PylockValidationError as error:
        raise ValueError(f"{PYLOCK} violates PEP 751: {error}") from error
    resolved: dict[str, list[Resolved]] = {
        python: [] for python in wheel_set.python_versions
    }
    for package in packages:
        if package.name in own:
            continue
        item = _dependency(package)
        for python, items in resolved.items():
            if _serves(package, python):
                items.append(item)
    return resolved


def _serves(package: Package, python: str) -> bool:
    return package.marker is None or package.marker.evaluate({"python_version": python})


def _dependency(package: Package) -> Resolved:
    (wheel,) = package.wheels or ()
    name, version, _, _ = parse_wheel_filename(str(wheel.name))
    served = unquote(urlsplit(str(wheel.url)).path).rpartition("/")[2]
    if (name, version, served) != (package.name, package.version, wheel.name):
        raise ValueError(
            f"{wheel.name} from {wheel.url} is not a wheel of {package.name}"
            f" {package.version}"
        )
    return Resolved(
        name=package.name,
        version=str(package.version),
        filename=str(wheel.name),
        url=str(wheel.url),
        sha256=wheel.hashes["sha256"],
        requires_python=str(package.requires_python or ""),
    )
