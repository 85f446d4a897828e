"""Published wheels: pip resolves and downloads them, with its own configuration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from packaging.version import Version

from core.defaults import defaults
from core.model import BuildRequest, Payload
from core.pip import Resolved, links_options, parse_report, pip_argv, run_pip
from core.process import Runner
from core.versions import native_release, package_name


def jax_release(version: str) -> str:
    """Return the release of jax for a version of the plugin, without the plugin's own `.postN`."""
    return Version(version).public.partition(".post")[0]


def requirements(request: BuildRequest) -> tuple[str, ...]:
    """Return the exact requirements of a set.

    Jax, jaxlib, and for published wheels also plugin and pjrt.
    """
    major = request.rocm_version.major
    base = jax_release(request.jax_version)
    jax = (f"jax=={base}", f"jaxlib=={base}")
    if request.payload is Payload.SOURCE:
        return jax
    native = native_release(request.jax_version)
    return (
        *jax,
        f"{package_name('plugin', major)}=={native}",
        f"{package_name('pjrt', major)}=={native}",
    )


def resolve_argv(request: BuildRequest, python: str) -> tuple[str, ...]:
    """Return the pip command that resolves the set for one Python and reports it."""
    return _report_argv(python, request.find_links, *requirements(request))


def _report_argv(
    python: str, find_links: Sequence[str], *words: str
) -> tuple[str, ...]:
    return pip_argv(
        "install",
        "--dry-run",
        "--ignore-installed",
        "--quiet",
        "--only-binary=:all:",
        f"--python-version={python}",
        "--target=unused",
        "--report=-",
        *links_options(find_links),
        *words,
    )


def resolve(
    request: BuildRequest, python: str, runner: Runner, log: Path
) -> tuple[Resolved, ...]:
    """Return the distributions that pip would install for one Python.

    The set and all its dependencies.

    Args:
        log: file for the output of pip if it fails.

    Raises:
        InputError: the indexes and `--find-links` lack a distribution, or do not
            answer.
    """
    return parse_report(run_pip(resolve_argv(request, python), runner, log=log))


def newest_release(major: int, find_links: Sequence[str], runner: Runner) -> str:
    """Return the newest published version of the plugin for a ROCm major.

    Raises:
        InputError: the indexes and `find_links` have no plugin, or do not answer.
    """
    python = defaults()["pythons"]["main"]
    project = package_name("plugin", major)
    argv = _report_argv(python, find_links, "--no-deps", project)
    return parse_report(run_pip(argv, runner))[0].version
