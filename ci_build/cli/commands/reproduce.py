"""The command `ci_build reproduce`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import cloup

from ci_build.cli.common import State, connector, host_runner, print_json
from ci_build.cli.options.request import wheel_set_request
from ci_build.cli.options.settings import Settings
from ci_build.cli.options.table import chosen_options
from ci_build.images.manylinux import SEARCH
from core.defaults import defaults
from core.errors import ReproducibilityError, RequestError
from core.model import WheelSet

_FROM_CALLER = ("cache_dir", "rocm_lock", "source_mirror", "verbose")
"""Options that `reproduce` reads from its command line instead of the recorded request."""
_SOURCE_OF_IMAGES = ("image_mirror", "image_registry")
"""Options about the origin of the builder image: of one that is pulled or built, and of one that is searched."""
_CONTAINER = ("container_engine", *_SOURCE_OF_IMAGES)
"""Options that `reproduce` reads from its command line if the build runs in a container."""


@cloup.command()
@click.argument("folder", metavar="SET", type=click.Path(path_type=Path))
@click.option("--rocm-lock", metavar="FILE", default=defaults()["build"]["rocm_lock"], show_default=True,
              help="Lock of the set's ROCm.")  # fmt: skip
@click.option(
    "--cache-dir",
    metavar="DIR",
    help="Cache of downloads; build results are not read from it.  [default: user's cache]",
)
@click.option("--container-engine", metavar="docker|podman|FILE", help="Container engine.  [default: the first found]")
@chosen_options("image_mirror", "image_registry")
@click.option("--source-mirror", metavar="URL|DIR", help="Mirror of jax-ml/jax, openxla/xla and ROCm/rocm-jax.")
@click.option("--json", "as_json", is_flag=True, help="Print the differences as JSON.")
@click.option("--verbose", "-v", is_flag=True, default=None, help="Also print commands and their output.")
@click.pass_obj
def reproduce(state: State, /, folder: Path, *, as_json: bool, **after: object) -> None:
    """Rebuild a set from its wheels.json and its ROCm's lock, and compare it.

    The exit code is 0 if all wheels are identical, else 20. The report names the sections that differ.
    """
    from ci_build.build import reproduce  # Start-up time: it loads requests.

    settings, reporter = state.settings(after), state.reporter(after)
    runner, connect = host_runner(reporter), connector(reporter)
    before = reproduce.read_source_set(folder)
    if not (lock := Path(settings.text("rocm_lock"))).exists():
        raise RequestError(f"{lock} does not exist.", hint="Give the lock of the set's ROCm with --rocm-lock.")
    with reproduce.rebuild_folder(settings.cache_dir) as rebuild:
        recorded = recorded_settings(before, settings, rebuild / "set")
        commit = before.request["source"]["own_commit"]
        request = wheel_set_request(recorded, reporter, runner, connect, rebuild=rebuild, own_commit=commit)
        found = reproduce.reproduce(folder, before, request, reporter, runner, connect)
    if as_json:
        print_json(found)
    else:
        for name in found.same:
            click.echo(f"same  {name}")
        for name, differences in found.differences.items():
            click.echo(f"OTHER {name}")
            for item in differences:
                click.echo("  " + " ".join(part for part in (item.member, item.section, item.what) if part))
    if found.differences:
        raise ReproducibilityError(
            f"{len(found.differences)} of {len(found.differences) + len(found.same)} wheels differ.",
            hint="See the differences above.",
        )


def recorded_settings(wheel_set: WheelSet, caller: Settings, out: Path) -> Settings:
    """Return settings that request the recorded set again, with commits and digests instead of branches and tags.

    Args:
        caller: settings for this machine: its folders, container engine and servers.
        out: folder of the new set.

    Raises:
        RequestError: another version of this program built the set.
    """
    request = wheel_set.request
    try:
        return Settings(_given(request, request["source"], caller, out), {}, {})
    except KeyError as missing:
        raise RequestError(
            f"The recorded request has no {missing}: another version of this program built the set.",
            hint="Reproduce the set with the version at commit own_commit of its wheels.json.",
        ) from missing


def _given(request: Mapping[str, Any], source: Mapping[str, Any], caller: Settings, out: Path) -> dict[str, Any]:
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
        "find_links": ",".join(request.get("find_links", ())) or None,
        "compiler": source["compiler"],
        "clang_path": source["clang"] or None,
        # Sets of older versions do not record it.
        "bazel_path": source.get("bazel") or None,
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
        # The caches of the recorded build are not used, since caches and executors do not change the wheels.
        "rbe": remote is not None or None,
        **({f"rbe_{name}": value or None for name, value in source["credentials"].items()} if remote else {}),
        "locked": True,
        "out": str(out),
    }
    if remote:
        given["rbe_endpoint"], given["rbe_jobs"] = remote["endpoint"] or None, str(remote["jobs"])
        given["rbe_platform"], given["no_rbe_fallback"] = remote["platform"] or "none", not remote["fallback"] or None
    # The environment may set options of containers that this build does not use; on the command line, they are refused.
    used = () if container["host"] else ("container_engine", _SOURCE_OF_IMAGES[container["image"] == SEARCH])
    for name in (*_FROM_CALLER, *(name for name in _CONTAINER if name in used or caller.typed(name))):
        if (value := caller.get(name).value) is not None:
            given[name] = value
    return given
