"""A set that was built from source, built once more from what its wheels.json says, and compared with it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci_build.build import dist_wheels
from ci_build.cli import options
from core import wheelset
from core.errors import RequestError, WheelSetError
from core.model import WheelSet, to_json
from core.process import HostRunner
from core.report import Reporter
from wheelkit.inspect.compare import Difference, compare_wheels

_FROM_CALLER = ("cache_dir", "rocm_lock", "container_engine", "image_registry", "source_mirror", "verbose")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reproduction:
    """What came of building a set again.

    Attributes:
        same: names of the wheels that came out byte for byte.
        differences: wheel -> what differs inside.
        digest: of the new set.
    """

    same: tuple[str, ...]
    differences: Mapping[str, tuple[Difference, ...]]
    digest: str


def reproduce(folder: Path, caller: options.Settings, reporter: Reporter, runner: HostRunner) -> Reproduction:
    """Build everything of a set anew, in an empty folder and without any cache of results, and compare.

    Raises:
        RequestError: the set was not built from source, or what it was made of is not what is here now.
        WheelSetError: its wheels are not the ones that its wheels.json names.
    """
    from ci_build.build.execute import execute

    wheel_set = wheelset.read_set(folder)
    if wrong := wheelset.check_files(folder, wheel_set):
        raise WheelSetError(
            f"{folder} is not what its wheels.json says: {', '.join(wrong)}.", hint="Take the set as it was made."
        )
    cache = options.cache_dir(caller)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="reproduce-", dir=cache, ignore_cleanup_errors=True) as name:
        anew = Path(name)
        settings = settings_of(wheel_set, caller, anew / "set")
        own = str(_source(wheel_set)["own_commit"])
        prepared = dist_wheels.make_plan(settings, reporter, runner, "build", anew=anew, own_commit=own)
        if other := _others(wheel_set.request, to_json(prepared.plan.request)):
            raise RequestError(
                f"The set cannot be built again here: {'; '.join(other)}.",
                hint="Restore the ROCm, the builder image and the sources that its wheels.json names.",
            )
        with reporter.group(f"build {folder} again, from nothing"):
            made = execute(
                prepared.plan, out=anew / "set", cache=anew, runner=runner, progress=reporter, native=prepared.native
            )
        return _compare(folder, wheel_set, anew / "set", made.wheel_set, anew)


def _source(wheel_set: WheelSet) -> Mapping[str, Any]:
    source = wheel_set.request.get("source")
    if not isinstance(source, Mapping):
        raise RequestError("That set was not built from source.", hint="Only a set of --payload=source can be.")
    return source


def settings_of(wheel_set: WheelSet, caller: options.Settings, out: Path) -> options.Settings:
    """The options that would ask for the same set, with commits and digests in place of words that may move.

    Raises:
        RequestError: the set was not built from source, holds kernels, or was made by another version of this program.
    """
    source = _source(wheel_set)
    if wheel_set.request.get("kernels"):
        raise RequestError(
            "That set holds kernels, which are not built again here.",
            hint="Build them with `ci_build kernels build` and an empty --cache-dir, and compare sets without them.",
        )
    try:
        return options.Settings(_given(wheel_set.request, source, caller, out), {}, {})
    except KeyError as missing:
        raise RequestError(
            f"The request of that set says nothing of {missing}: another version of this program made it.",
            hint="Reproduce it with that version; own_commit in its wheels.json names it.",
        ) from missing


def _given(
    request: Mapping[str, Any], source: Mapping[str, Any], caller: options.Settings, out: Path
) -> dict[str, Any]:
    container, remote = source["container"], source["remote"]
    folders = {checkout["name"]: checkout["folder"] for checkout in source["sources"]}
    given: dict[str, Any] = {
        "payload": request["payload"],
        "jax_version": request["jax_version"],
        "rocm_version": request["rocm_version"],
        "python_versions": ",".join(request["python_versions"]),
        "targets": ",".join(request["targets"]),
        "wheel_post_release": request["post_release"] and str(request["post_release"]),
        "no_rocm_version_extra": not request["rocm_version_extra"] or None,
        "no_strip": not request["strip"] or None,
        "compiler": source["compiler"],
        "clang_path": source["clang"] or None,
        "jax_source_dir": folders.get("jax") or None,
        "xla_source_dir": folders.get("xla") or None,
        "xla": source["xla_commit"] if source["xla"] not in ("pin", "dir") else None,
        "one_target": source["one_target"] or None,
        "host": container["host"] or None,
        "builder_image": container["image"] or None,
        "base_docker": container["base"] or None,
        "container_network": None if container["host"] else container["network"],
        "container_memory": container["memory"] or None,
        "container_shm_size": None if container["host"] else container["shm_size"],
        # Where actions run and what is kept of them decides nothing about the wheels.
        "rbe": remote is not None or None,
        **({f"rbe_{name}": value or None for name, value in source["credentials"].items()} if remote else {}),
        "locked": True,
        "out": str(out),
    }
    if remote:
        given["rbe_endpoint"], given["rbe_jobs"] = remote["endpoint"] or None, str(remote["jobs"])
        given["rbe_platform"], given["no_rbe_fallback"] = remote["platform"] or "none", not remote["fallback"] or None
    for name in _FROM_CALLER:
        if (value := caller.get(name).value) is not None:
            given[name] = value
    return given


def _others(before: Mapping[str, Any], now: Mapping[str, Any], path: str = "") -> list[str]:
    """What the two requests do not have in common, but for caches and for how XLA's commit was named."""
    found = []
    for key in sorted({*before, *now}):
        name = f"{path}{key}"
        old, new = before.get(key), now.get(key)
        if (
            name in ("source.cache", "source.xla", "source.container", "source.remote", "source.credentials")
            or old == new
        ):
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += _others(old, new, f"{name}.")
        else:
            found.append(f"{name} is {new!r}, and was {old!r}")
    return found


def _compare(folder: Path, before: WheelSet, fresh: Path, now: WheelSet, scratch: Path) -> Reproduction:
    old, new = {wheel.filename: wheel for wheel in before.wheels}, {wheel.filename: wheel for wheel in now.wheels}
    same, differences = [], dict[str, tuple[Difference, ...]]()
    for name in sorted({*old, *new}):
        if name not in old or name not in new:
            what = "is there no more" if name not in new else "is new"
            differences[name] = (Difference(member="", section="", what=what),)
        elif old[name].sha256 == new[name].sha256:
            same.append(name)
        else:
            found = compare_wheels(folder / name, fresh / name, scratch)
            differences[name] = found or (Difference(member="", section="", what="is packed otherwise"),)
    return Reproduction(same=tuple(same), differences=differences, digest=now.digest)
