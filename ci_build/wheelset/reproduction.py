"""Reproduction of a set.

A second build from source, as recorded in wheels.json, and its comparison with the set.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ci_build.wheelset import set_build as dist_wheels
from ci_build.wheelset.execute import SetExecution
from ci_build.wheelset.wheel_request import WheelSetRequest
from core import wheelset
from core.errors import FormatError, RequestError
from core.frozen import frozen
from core.http.client import Connect
from core.model import (
    WHEELS_JSON,
    BuildRequest,
    GfxTarget,
    Payload,
    RocmVersion,
    WheelSet,
)
from core.process import HostRunner
from core.records import convert
from core.report import Reporter
from core.rocm_trust import ROCM_TRUST
from core.source_request import SourceRequest
from core.wheels_json import load_wheel_set
from wheelkit.inspect.compare import Difference, compare_wheels

_WITHOUT_EFFECT = (
    "source.cache",
    "source.xla",
    "source.container",
    "source.remote",
    "source.bazelrc",
    ROCM_TRUST,
)
"""Parts of a recorded request that do not change the wheels."""


@frozen
class Reproduction:
    """Result of building a set again.

    Attributes:
        same: names of the wheels that are byte-identical.
        differences: name of a wheel -> differences in its content.
        digest: digest of the new set.
    """

    same: tuple[str, ...]
    differences: Mapping[str, tuple[Difference, ...]]
    digest: str


def read_recorded_set(place: Path) -> WheelSet:
    """Return the set in a folder or of a single wheels.json, and check that it can be built again.

    Raises:
        RequestError: the set was adopted, or contains kernels.
        WheelSetError: files differ from wheels.json.
    """
    if place.is_file():
        wheel_set = load_wheel_set(place.read_bytes(), str(place))
    else:
        wheel_set = wheelset.read_unchanged(place)
    if wheel_set.request.get("payload") not in [*Payload]:
        raise RequestError(
            "The set was not built: its wheels were adopted.",
            hint="Give a set that `ci_build dist_wheels` built.",
        )
    if wheel_set.request.get("kernels"):
        raise RequestError(
            "The set contains kernels, which `set reproduce` does not build.",
            hint=(
                "Give a set without kernels; rebuild kernels with `ci_build kernels"
                " build` and an empty --cache-dir."
            ),
        )
    return wheel_set


def recorded_request(record: Mapping[str, Any], engine: str) -> BuildRequest:
    """Return the request of a recorded set, by commits and digests.

    Results of caches are not used, since caches and executors do not change the wheels.

    Args:
        record: the request in wheels.json.
        engine: container engine of this machine.

    Raises:
        RequestError: another version of this program built the set.
    """
    try:
        source = None
        if record["source"]:
            source = _recorded_source(record["source"], engine)
        targets = record["targets"]
        return BuildRequest(
            payload=Payload(record["payload"]),
            jax_version=record["jax_version"],
            rocm_version=RocmVersion(text=record["rocm_version"]),
            python_versions=tuple(record["python_versions"]),
            targets=None if targets is None else tuple(map(GfxTarget.parse, targets)),
            rocm_version_extra=record["rocm_version_extra"],
            post_release=record["post_release"],
            strip=record["strip"],
            platform_tag=record["platform_tag"],
            source=source,
            find_links=tuple(record["find_links"]),
        )
    except (KeyError, FormatError) as error:
        raise RequestError(
            f"Another version of this program built the set: {error}.",
            hint=(
                "Reproduce the set with the version at commit own_commit of its"
                " wheels.json."
            ),
        ) from error


def _recorded_source(record: Mapping[str, Any], engine: str) -> SourceRequest:
    options = {item.name: record[item.name] for item in fields(SourceRequest)}
    source = convert(options, SourceRequest, WHEELS_JSON)
    container = source.container
    if not container.host:
        container = replace(container, engine=engine)
    remote = source.remote
    if remote is None:
        return replace(source, container=container, cache="", bazelrc="")
    remote = replace(remote, accept_cached=False)
    return replace(source, container=container, cache="", remote=remote)


@contextmanager
def rebuild_folder(cache: Path) -> Iterator[Path]:
    """Provide an empty folder in the cache for everything that is built again."""
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix="reproduce-", dir=cache, ignore_cleanup_errors=True
    ) as name:
        yield Path(name)


def reproduce(
    place: Path,
    before: WheelSet,
    request: WheelSetRequest,
    reporter: Reporter,
    runner: HostRunner,
    connect: Connect,
) -> Reproduction:
    """Build a set again without cached results, and compare it with the original.

    Args:
        place: folder of the original, or its wheels.json, with which only digests can
            be compared.

    Raises:
        RequestError: the ROCm, the builder image or the sources differ from the
            recorded ones.
    """
    prepared = dist_wheels.prepare(request, reporter, runner, connect)
    if differences := _other_inputs(before.request, prepared.plan.record()):
        raise RequestError(
            f"The set cannot be built again here: {'; '.join(differences)}.",
            hint=(
                "Restore the ROCm, the builder image and the sources that the set's"
                " wheels.json names."
            ),
        )
    with reporter.group(f"build {place} again, without cached results"):
        after = SetExecution(
            # They do not change the wheels, and need a server.
            plan=replace(prepared.plan, rocm_packages=before.rocm_packages),
            out=request.out,
            cache=request.built,
            runner=runner,
            progress=reporter,
            builder=prepared.builder,
        ).run()
    return _compare(place, before, request.out, after.wheel_set, request.built)


def _other_inputs(
    before: Mapping[str, Any], now: Mapping[str, Any], path: str = ""
) -> list[str]:
    """Return the differences of two recorded requests that can change the wheels.

    Caches, executors, the option for XLA's commit and the way in which the ROCm was
    verified cannot.
    """
    differences = []
    for key in sorted({*before, *now}):
        name = f"{path}{key}"
        old = before.get(key)
        new = now.get(key)
        if name in _WITHOUT_EFFECT or old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            differences += _other_inputs(old, new, f"{name}.")
        else:
            differences.append(f"{name} is {new!r}, was {old!r}")
    return differences


def _compare(
    place: Path, before: WheelSet, fresh: Path, now: WheelSet, scratch: Path
) -> Reproduction:
    old = {wheel.filename: wheel.sha256 for wheel in before.wheels}
    new = {wheel.filename: wheel.sha256 for wheel in now.wheels}
    same = []
    differences: dict[str, tuple[Difference, ...]] = {}
    for name in sorted({*old, *new}):
        found: tuple[Difference, ...] = ()
        if name not in new:
            what = "is missing"
        elif name not in old:
            what = "is new"
        elif old[name] == new[name]:
            same.append(name)
            continue
        elif place.is_dir():
            what = "is packed differently"
            found = compare_wheels(place / name, fresh / name, scratch)
        else:
            what = "has another sha256"
        whole = Difference(member="", section="", what=what)
        differences[name] = found or (whole,)
    return Reproduction(same=tuple(same), differences=differences, digest=now.digest)
