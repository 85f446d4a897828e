"""The command `ci_build set reproduce`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click
import cloup

from ci_build.cli.common import State, connector, host_runner, open_bucket, print_json
from ci_build.cli.options.rocm_options import rocm_storage
from ci_build.cli.options.settings import Settings
from ci_build.cli.options.shared_options import (
    PATH,
    bucket_option,
    json_option,
    refuse_typed,
)
from ci_build.cli.options.table import chosen_options
from ci_build.images.image_builder import SEARCH
from ci_build.rocm.lock import load_lock
from ci_build.rocm.set_lock import locked_request, set_lock
from ci_build.wheelset.wheel_request import WheelSetRequest
from core.errors import FormatError, ReproducibilityError, RequestError
from core.model import ROCM_LOCK, BuildRequest, WheelSet
from core.process import HostRunner
from core.report import Reporter, print_line
from promotion.stage import fetch_set
from promotion.storage.object_keys import StagedSet, is_digest
from wheelkit.rocm_manifest import ROCM_MANIFEST

if TYPE_CHECKING:  # At run time, they would be slow to import.
    from ci_build.wheelset.reproduction import Reproduction
    from core.http.client import Connect


@cloup.command()
@click.argument("folder", metavar="SET", type=PATH)
@chosen_options(
    "rocm_lock",
    "cache_dir",
    "container_engine",
    "image_registry",
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
    engine = settings.text("container_engine")
    build = reproduction.recorded_request(before.request, engine)
    _refuse_unused(build)
    rocm = None
    manifest = None
    own_commit = ""
    if build.source is not None:
        own_commit = before.request["source"]["own_commit"]
        lock = find_lock(settings, before, place)
        rocm = locked_request(lock, str(build.rocm_version), build.targets or ())
    elif before.request["rocm_manifest"]:
        manifest = find_manifest(place)
    with reproduction.rebuild_folder(settings.cache_dir) as rebuild:
        request = WheelSetRequest(
            build=build,
            rocm=rocm,
            rocm_manifest=manifest,
            storage=rocm_storage(settings),
            registry=settings.text("image_registry"),
            out=rebuild / "set",
            cache=settings.cache_dir,
            rebuild=rebuild,
            own_commit=own_commit,
        )
        return reproduction.reproduce(place, before, request, reporter, runner, connect)


def _refuse_unused(build: BuildRequest) -> None:
    """Refuse options that have no effect on the recorded build."""
    source = build.source
    unused = ["rocm_lock"] if source is None else []
    if source is None or source.container.host:
        unused.append("container_engine")
    if source is None or source.container.image != SEARCH:
        unused.append("image_registry")
    refuse_typed(unused, "on this set")


def find_lock(settings: Settings, wheel_set: WheelSet, place: Path) -> Path:
    """Return the lock of a set's ROCm.

    The given lock, or else its origin in the working folder, or else that of the set.
    """
    lock = Path(settings.text("rocm_lock"))
    held = place / ROCM_LOCK
    if settings.given("rocm_lock") or not place.is_dir():
        return lock
    if ROCM_LOCK not in wheel_set.files or _matches_set_lock(lock, held):
        return lock
    return held


def _matches_set_lock(lock: Path, held: Path) -> bool:
    """Return whether a lock equals a set's lock, which omits paths and queries of URLs."""
    try:
        known = load_lock(lock)
    except FormatError:
        return False
    return known is not None and set_lock(known) == held.read_bytes()


def find_manifest(place: Path) -> Path:
    """Return the ROCm manifest of a set.

    Raises:
        RequestError: it is missing.
    """
    manifest = place / ROCM_MANIFEST
    if not manifest.is_file():
        raise RequestError(
            f"{place} has no {ROCM_MANIFEST}, which is a part of the set.",
            hint="Give the folder of the set.",
        )
    return manifest
