"""The command `ci_build set reproduce`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import cloup

from ci_build.cli.common import State, connector, host_runner, open_bucket, print_json
from ci_build.cli.options.request_conversion import wheel_set_request
from ci_build.cli.options.settings import Setting, Settings
from ci_build.cli.options.shared_options import (
    PATH,
    bucket_option,
    json_option,
    refuse_typed,
)
from ci_build.cli.options.table import chosen_options
from ci_build.images.image_builder import SEARCH
from ci_build.rocm.lock import load_lock
from ci_build.rocm.set_lock import set_lock
from core.errors import FormatError, ReproducibilityError, RequestError
from core.model import ROCM_LOCK, WheelSet
from core.process import HostRunner
from core.report import Reporter, print_line
from core.targets import ALL, UNSUPPORTED
from promotion.stage import fetch_set
from promotion.storage.object_keys import StagedSet, is_digest
from wheelkit.rocm_manifest import ROCM_MANIFEST

if TYPE_CHECKING:  # At run time, they would be slow to import.
    from ci_build.wheelset.reproduction import Reproduction
    from core.http.client import Connect

_EVERYWHERE = ("cache_dir", "verbose", "quiet")
"""Options of this command that every build reads."""


@cloup.command()
@click.argument("folder", metavar="SET", type=PATH)
@chosen_options(
    "rocm_lock",
    "cache_dir",
    "container_engine",
    "image_registry",
    "source_mirror",
    "verbose",
)
@bucket_option
@json_option
@click.pass_obj
def reproduce(
    state: State, /, folder: Path, bucket: str, *, as_json: bool, **after: object
) -> None:
    """Rebuild a set from its wheels.json and its rocm.lock, and compare it.

    SET is the folder of a set, its wheels.json alone, or INDEX/DIGEST of a set in the
    bucket. The wheels of a set of published wheels are fetched and repaired again,
    without a lock.

    The exit code is 0 if all wheels are identical, else 20. The report names the
    sections that differ.
    """
    # Start-up time: it loads requests.
    from ci_build.wheelset import reproduction

    settings = state.settings(after)
    reporter = state.reporter(after)
    runner = host_runner(reporter)
    connect = connector(reporter)
    with ExitStack() as stack:
        in_bucket = is_digest(folder.name) and len(folder.parts) == 2
        if in_bucket and not folder.exists():
            staged = StagedSet(index=folder.parts[0], digest=folder.name)
            opened = open_bucket(bucket, reporter)
            folder = (
                stack.enter_context(reproduction.rebuild_folder(settings.cache_dir))
                / "original"
            )
            reporter.step(f"download {staged}")
            fetch_set(opened, staged, folder)
        else:
            hint = "Omit it, or give INDEX/DIGEST."
            refuse_typed(("bucket",), f"with {folder}", hint)
        found = _reproduced(folder, settings, reporter, runner, connect)
    if as_json:
        print_json(found)
    else:
        for name in found.same:
            print_line(f"same  {name}")
        for name, differences in found.differences.items():
            print_line(f"OTHER {name}")
            for item in differences:
                parts = filter(None, (item.member, item.section, item.what))
                print_line(f"  {' '.join(parts)}")
    if found.differences:
        raise ReproducibilityError(
            f"{len(found.differences)} of {len(found.differences) + len(found.same)}"
            " wheels differ.",
            hint="See the differences above.",
        )


def _reproduced(
    place: Path,
    settings: Settings,
    reporter: Reporter,
    runner: HostRunner,
    connect: Connect,
) -> Reproduction:
    """Rebuild the set in a folder, or of a wheels.json, and compare it."""
    from ci_build.wheelset import reproduction  # Start-up time: it loads requests.

    before = reproduction.read_recorded_set(place)
    source = before.request.get("source")
    if source:
        settings = with_lock(settings, before, place)
    with reproduction.rebuild_folder(settings.cache_dir) as rebuild:
        recorded = recorded_settings(before, settings, rebuild / "set", place)
        commit = source["own_commit"] if source else ""
        request = wheel_set_request(
            recorded, reporter, runner, connect, rebuild=rebuild, own_commit=commit
        )
        return reproduction.reproduce(place, before, request, reporter, runner, connect)


def with_lock(settings: Settings, wheel_set: WheelSet, place: Path) -> Settings:
    """Return settings whose default lock is that of the set, or its origin in the folder.

    Raises:
        RequestError: there is no lock.
    """
    lock = Path(settings.text("rocm_lock"))
    held = place / ROCM_LOCK
    if (
        ROCM_LOCK in wheel_set.files
        and place.is_dir()
        and not _matches_set_lock(lock, held)
    ):
        settings = settings.with_defaults(
            {"rocm_lock": Setting(value=str(held), origin=str(held))}
        )
    if not (lock := Path(settings.text("rocm_lock"))).exists():
        raise RequestError(
            f"{lock} does not exist.",
            hint="Give the lock of the set's ROCm with --rocm-lock.",
        )
    return settings


def _matches_set_lock(lock: Path, held: Path) -> bool:
    """Return whether a lock equals a set's lock, which omits paths and queries of URLs."""
    try:
        known = load_lock(lock)
    except FormatError:
        return False
    return known is not None and set_lock(known) == held.read_bytes()


def recorded_settings(
    wheel_set: WheelSet, caller: Settings, out: Path, place: Path
) -> Settings:
    """Return settings that request the recorded set again, by commits and digests.

    Args:
        caller: settings for this machine: its folders, container engine and servers.
        out: folder of the new set.
        place: folder or wheels.json of the recorded set.

    Raises:
        RequestError: another version of this program built the set, or its ROCm
            manifest is missing.
    """
    request = wheel_set.request
    try:
        given = _given_wheels(request, out)
        if request["source"]:
            given |= _given_source(request["source"], caller)
        else:
            given |= {name: caller.get(name).value for name in _EVERYWHERE}
            if request["rocm_manifest"]:
                given["rocm_manifest"] = str(_manifest(place))
    except KeyError as missing:
        raise RequestError(
            f"The recorded request has no {missing}: another version of this program"
            " built the set.",
            hint=(
                "Reproduce the set with the version at commit own_commit of its"
                " wheels.json."
            ),
        ) from missing
    # An empty value is one that was not given.
    return Settings({name: value for name, value in given.items() if value})


def _manifest(place: Path) -> Path:
    manifest = place / ROCM_MANIFEST
    if not manifest.is_file():
        raise RequestError(
            f"{place} has no {ROCM_MANIFEST}, which is a part of the set.",
            hint="Give the folder of the set.",
        )
    return manifest


def _given_wheels(request: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Return the options of every build."""
    targets = ALL
    if request["targets"] is not None:
        targets = ",".join((*request["targets"], UNSUPPORTED))
    return {
        "payload": request["payload"],
        "jax_version": request["jax_version"],
        "rocm_version": request["rocm_version"],
        "python_versions": ",".join(request["python_versions"]),
        "targets": targets,
        "wheel_post_release": request["post_release"],
        "no_rocm_version_extra": not request["rocm_version_extra"],
        "no_strip": not request["strip"],
        "platform_tag": request["platform_tag"],
        "find_links": ",".join(request["find_links"]),
        "out": str(out),
    }


def _given_source(source: Mapping[str, Any], caller: Settings) -> dict[str, Any]:
    """Return the options of a build from source."""
    container = source["container"]
    remote = source["remote"]
    folders = {checkout["name"]: checkout["folder"] for checkout in source["sources"]}
    # The caches of the recorded build are not used, since caches and executors do not
    # change the wheels.
    given: dict[str, Any] = {
        "compiler": source["compiler"],
        "clang_path": source["clang"],
        "bazel_path": source["bazel"],
        "jax_source_dir": folders.get("jax"),
        "xla_source_dir": folders.get("xla"),
        "xla": source["xla_commit"] if source["xla"] not in ("pin", "dir") else "",
        "one_target": source["one_target"],
        "host": container["host"],
        "builder_image": container["image"],
        "base_docker": container["base"],
        "container_args": shlex.join(container["args"]),
        "rbe": remote is not None,
        "locked": True,
    }
    if remote:
        given["rbe_endpoint"] = remote["endpoint"]
        given["rbe_bazelrc"] = source["bazelrc"]
    # The environment may set options of containers that this build does not use; on the
    # command line, they are refused.
    names = [*_EVERYWHERE, "rocm_lock", "source_mirror"]
    if not container["host"] or caller.typed("container_engine"):
        names.append("container_engine")
    if container["image"] == SEARCH or caller.typed("image_registry"):
        names.append("image_registry")
    return given | {name: caller.get(name).value for name in names}
