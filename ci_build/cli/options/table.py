"""Options of a build, in the groups of the help.

click reads each from the command line, else from its environment variable, else from
the project file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import click
import cloup

from ci_build.cli.options.environment import ENV_PREFIX
from core.defaults import defaults
from core.model import Payload

_F = TypeVar("_F", bound=Callable[..., Any])
ENVIRONMENT = click.core.ParameterSource.ENVIRONMENT


class _Option(cloup.Option):
    """An option whose error names the environment variable that set it."""

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return the origin of a wrong value."""
        if ctx and ctx.get_parameter_source(self.name or "") is ENVIRONMENT:
            return str(self.envvar)
        return super().get_error_hint(ctx)


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildOption:
    """An option of a build.

    Attributes:
        name: identifier of its value, such as python_versions.
        flags: names on the command line.
        attributes: further arguments of click.
    """

    name: str
    flags: tuple[str, ...]
    attributes: Mapping[str, Any]

    def decorator(self, tables: Sequence[str], *, read: bool) -> Callable[[_F], _F]:
        """Return the decorator of click.

        Args:
            tables: tables of defaults.toml for the default in the help; the first table
                that contains the option counts.
            read: whether the environment and the project file set it too.
        """
        text = str(self.attributes["help"])
        for table in tables:
            if self.name in defaults()[table]:
                text += f"  [default: {defaults()[table][self.name]}]"
                break
        more = {"envvar": variable(self.name)} if read else {"expose_value": False}
        return cloup.option(
            *self.flags,
            self.name,
            cls=_Option,
            **{"default": None, **self.attributes, "help": text, **more},
        )


def variable(name: str) -> str:
    """Return the environment variable of an option."""
    return f"{ENV_PREFIX}{name.upper()}"


def _option(*flags: str, **attributes: Any) -> BuildOption:  # noqa: ANN401 - click's own
    name = flags[0].lstrip("-").replace("-", "_")
    return BuildOption(name=name, flags=flags, attributes=attributes)


def _flag(*flags: str, **attributes: Any) -> BuildOption:  # noqa: ANN401 - click's own
    return _option(*flags, is_flag=True, **attributes)


_GROUPS: Mapping[str, tuple[BuildOption, ...]] = {
    "Wheels": (
        _option(
            "--payload",
            type=click.Choice([payload.value for payload in Payload]),
            help="Origin of the native code: compiled, or copied from published wheels.",
        ),
        _option(
            "--jax-version",
            metavar="X.Y.Z|X.Y",
            help="Release of jax; X.Y is its newest one.  [default: the newest one for"
            " the Pythons and the ROCm]",
        ),
        _option("--python-versions", metavar="X.Y,…", help="Python versions."),
        _option(
            "--rocm-version",
            metavar="X.Y.Z",
            help="ROCm of the native code; a source build downloads it from AMD."
            "  [default: of published wheels]",
        ),
        _option(
            "--targets",
            "--rocm_amdgpu_targets",
            metavar="GFX,…|native",
            help="GPU targets or families; `native` means the GPUs of this machine.",
        ),
        _option(
            "--wheel-post-release", metavar="N", help="Append .postN to every version."
        ),
        _option(
            "--platform-tag",
            metavar="auto|manylinux_2_N",
            help="Platform tag of the wheels; `auto` is the lowest true one."
            "  [default: auto; manylinux_2_28 for a source build]",
        ),
        _flag("--no-rocm-version-extra", help="Omit the +rocm… suffix from versions."),
        _flag("--no-strip", help="Keep the symbol tables of libraries."),
        _option(
            "--compiler",
            type=click.Choice(("clang", "gcc")),
            help="Host compiler of a source build.",
        ),
        _option(
            "--find-links",
            metavar="DIR|URL,…",
            help="Folders or pages of wheels that pip uses beside its index.",
        ),
    ),
    "ROCm": (
        _option(
            "--therock-path",
            metavar="URL|FILE|DIR",
            help="ROCm as a tarball or a folder, such as /opt/rocm.",
        ),
        _option(
            "--therock",
            metavar="nightly|latest|X.Y.Z",
            help=(
                "ROCm of --therock-listing: the newest nightly, which must not be older"
                " than 3 days, the newest release, or a version."
            ),
        ),
        _option(
            "--family",
            metavar="NAME,…",
            help="GPU families of the build.  [default: from --targets]",
        ),
        _option("--therock-listing", metavar="URL", help="Page that lists the builds."),
        _option(
            "--therock-index-url",
            metavar="URL",
            help="ROCm from the pip packages of an index; the newest without --rocm-version.",
        ),
        _option(
            "--therock-sha256", metavar="HEX", help="Expected sha256 of the tarball."
        ),
        _flag(
            "--require-checksum",
            help="Refuse a ROCm without a given, locked or published checksum.",
        ),
        _option(
            "--rocm-lock", metavar="FILE", help="Lock file that records the exact ROCm."
        ),
        _flag("--locked", help="Refuse any ROCm except the locked one."),
        _option(
            "--cache-limit", metavar="SIZE", help="Total size of the cached ROCm trees."
        ),
        _option(
            "--rocm-build-job",
            metavar="NAME",
            help="Internal build job, for --therock-path with {job}, {num}, {version}.",
        ),
        _option(
            "--rocm-build-num",
            metavar="N",
            help="Build number of the job.  [default: lastSuccessfulBuild]",
        ),
        _option(
            "--rocm-manifest",
            metavar="FILE|DIR",
            help="Manifest of the ROCm in a set, or the ROCm's tree.",
        ),
        _flag(
            "--hash-rocm",
            help="Record the digests of the ROCm's wheels that users install.",
        ),
    ),
    "Source build": (
        _option(
            "--xla",
            metavar="pin|head|COMMIT",
            help="XLA to compile; `pin` is the commit that jax pins.",
        ),
        _option(
            "--xla-source-dir",
            metavar="DIR",
            help="XLA checkout to compile instead of --xla.",
        ),
        _option(
            "--jax-source",
            type=click.Choice(("jax-ml", "amd")),
            help="Repository of jax: jax-ml/jax, or ROCm/jax at the commit of AMD's wheels.",
        ),
        _option(
            "--jax-source-dir",
            metavar="DIR",
            help="jax checkout to build, with its jaxlib.",
        ),
        _option(
            "--source-mirror",
            metavar="URL|DIR",
            help="Mirror of jax-ml/jax, openxla/xla and ROCm/rocm-jax.",
        ),
        _option(
            "--clang-path",
            metavar="FILE",
            help="Host clang in the build environment.  [default: the newest, or Bazel's]",
        ),
        _option(
            "--bazel-path",
            metavar="FILE",
            help="Bazel of a --host build.  [default: the pinned one]",
        ),
        _flag(
            "--one-target",
            help="Build only the first target and Python, without jaxlib.",
        ),
        _flag("--host", help="Build on this machine instead of in a container."),
    ),
    "Remote execution and action caches": (
        _flag(
            "--rbe",
            help=(
                "Build on remote executors; without --rbe-bazelrc, fall back to local"
                " execution when they fail."
            ),
        ),
        _option(
            "--rbe-endpoint",
            metavar="URL",
            help="Remote executors: grpc://… or grpcs://….",
        ),
        _option(
            "--rbe-bazelrc",
            metavar="FILE",
            help=(
                "bazelrc with certificates, headers, platform, jobs and fallback; the"
                " files that it names lie in its folder."
            ),
        ),
        _option(
            "--action-cache",
            metavar="URL|DIR",
            help="Bazel's cache for results of actions: a server, or a folder.",
        ),
    ),
    "Images and containers": (
        _option(
            "--base-docker",
            metavar="IMAGE",
            help="Base image of a new image, instead of the pinned one.",
        ),
        _option(
            "--builder-image",
            "-b",
            metavar="IMAGE|search",
            help="Builder image; `search` does not build one.",
        ),
        _option(
            "--image-registry",
            metavar="HOST[/PATH]",
            help="Registry of built images, to search and push them.",
        ),
        _option(
            "--container-engine",
            metavar="docker|podman|FILE",
            help="Engine.  [default: the first found]",
        ),
        _option(
            "--container-args",
            metavar="'OPTION…'",
            help=(
                "Further options of a container, such as '--memory=64g --network=none'."
            ),
        ),
    ),
    "Kernels": (
        _flag("--kernels", help="Also build the kernel modules: wheel jax_aiter."),
        _option(
            "--aiter-source",
            metavar="DIR|FILE|amd-aiter==X",
            help="AITER's sources.  [default: the pinned ones]",
        ),
        _option(
            "--kernel-rocm",
            metavar="DIR",
            help=(
                "ROCm that compiles the kernels.  [default: compilers of the package"
                " index; with --kernel-image, /opt/rocm]"
            ),
        ),
        _option(
            "--kernel-image",
            metavar="IMAGE",
            help="Image in whose containers the ROCm's compiler runs.",
        ),
        _option(
            "--kernel-modules",
            metavar="NAME,…",
            help="Kernel modules to build.  [default: all]",
        ),
        _option(
            "--kernel-instances",
            metavar="REGEX",
            help="Generated kernels to build, matched by name.  [default: all]",
        ),
        _option(
            "--require",
            metavar="NAME,…",
            help="Kernel modules that every target must have.",
        ),
        _flag(
            "--allow-partial",
            help="Omit kernel modules that cannot be built; mark the wheel as partial.",
        ),
    ),
    "Output": (
        _option("--out", metavar="DIR", help="Output directory of the wheel set."),
        _option(
            "--cache-dir",
            metavar="DIR",
            help="Cache of downloads and finished steps.  [default: user's cache]",
        ),
        _flag(
            "--dry-run", help="Print every command and effect without running anything."
        ),
        _flag("--json", help="Print the result as JSON on standard output."),
        _flag("--verbose", "-v", help="Also print commands and their output."),
        _flag(
            "--quiet",
            "-q",
            help="Print only warnings, errors and results for programs.",
        ),
    ),
}
"""Title of a help section -> its options."""
_OPTIONS = {option.name: option for option in chain.from_iterable(_GROUPS.values())}


def _names(title: str) -> tuple[str, ...]:
    """Return the names of the options in a group."""
    return tuple(option.name for option in _GROUPS[title])


REFUSED_WITH_PUBLISHED = (
    "rocm_build_job",
    "rocm_build_num",
    "base_docker",
    "builder_image",
    *_names("Source build"),
    *_names("Remote execution and action caches"),
)
"""Options of a source build that contradict `--payload=published`."""
CONTAINER_OPTIONS = tuple(
    name
    for name in _names("Images and containers")
    if name not in ("base_docker", "builder_image")
)
"""Options about containers, which the environment may set for a whole machine."""
OUTPUT_OPTIONS = ("cache_dir", "dry_run", "json", "verbose", "quiet")
"""Options that have an effect in every run of a command that builds."""
SWITCHES = tuple(
    name for name, option in _OPTIONS.items() if "is_flag" in option.attributes
)
"""Options without a value."""
NEEDS_KERNELS = tuple(name for name in _names("Kernels") if name != "kernels")
"""Options of the kernel build, which need `--kernels`."""
PATHS = frozenset(
    name
    for name, option in _OPTIONS.items()
    if {"DIR", "FILE"} & {*re.split(r"\W", option.attributes.get("metavar", ""))}
)
"""Options whose value may be a path of this machine."""


def option_names() -> tuple[str, ...]:
    """Return the options' names as identifiers, such as python_versions."""
    return tuple(_OPTIONS)


def option_texts() -> Mapping[str, str]:
    """Return identifiers of the options with their help."""
    return {name: str(option.attributes["help"]) for name, option in _OPTIONS.items()}


def build_options(*tables: str, read: bool = True) -> Callable[[_F], _F]:
    """Return a decorator that adds every build option to a group or command, in titled groups.

    See `chosen_options` for the arguments.
    """
    return chosen_options(*_OPTIONS, tables=tables, read=read)


def chosen_options(
    *chosen: str, tables: Sequence[str] = ("build",), read: bool = True
) -> Callable[[_F], _F]:
    """Return a decorator that adds the build options with these identifiers.

    Args:
        tables: tables of defaults.toml for the defaults in the help; the first table
            that contains an option counts.
        read: whether the function gets values; else the help omits the options.
    """

    def decorate(function: _F) -> _F:
        for title, rows in reversed([*_GROUPS.items()]):
            options = [
                option.decorator(tables, read=read)
                for option in rows
                if option.name in chosen
            ]
            if options:
                function = cloup.option_group(title, *options, hidden=not read)(
                    function
                )
        return function

    return decorate
