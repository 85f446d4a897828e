"""Options of a build, in the groups of the help."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click
import cloup

from core.defaults import defaults
from core.model import Payload

_F = TypeVar("_F", bound=Callable[..., Any])
Table = tuple[tuple[tuple[str, ...], dict[str, Any]], ...]
"""Names and attributes of options, as arguments of click."""
FLAG = {"is_flag": True, "default": None}


_WHEEL_OPTIONS: Table = (
    (
        ("--payload",),
        {
            "type": click.Choice([p.value for p in Payload]),
            "help": (
                "Origin of the native code: compiled from source, or copied from"
                " published wheels."
            ),
        },
    ),
    (("--jax-version",), {"metavar": "X.Y.Z", "help": "Release of jax."}),
    (("--python-versions",), {"metavar": "X.Y,…", "help": "Python versions."}),
    (
        ("--rocm-version",),
        {
            "metavar": "X.Y.Z",
            "help": "ROCm of the native code.  [default: of published wheels]",
        },
    ),
    (
        ("--targets", "--rocm_amdgpu_targets", "targets"),
        {
            "metavar": "GFX,…|native",
            "help": "GPU targets or families; `native` means the GPUs of this machine.",
        },
    ),
    (
        ("--wheel-post-release",),
        {"metavar": "N", "help": "Append .postN to every version."},
    ),
    (
        ("--no-rocm-version-extra",),
        {**FLAG, "help": "Omit the +rocm… suffix from versions."},
    ),
    (("--no-strip",), {**FLAG, "help": "Keep the symbol tables of libraries."}),
    (
        ("--compiler",),
        {
            "type": click.Choice(["clang", "gcc"]),
            "help": "Host compiler of a source build.",
        },
    ),
    (
        ("--find-links",),
        {
            "metavar": "DIR|URL,…",
            "help": "Folders or pages of wheels that pip uses beside its index.",
        },
    ),
)
_ROCM_OPTIONS: Table = (
    (
        ("--therock-path",),
        {
            "metavar": "URL|FILE|DIR",
            "help": "ROCm as a tarball or a folder, such as /opt/rocm.",
        },
    ),
    (
        ("--therock",),
        {
            "metavar": "nightly|latest|X.Y.Z",
            "help": "ROCm from a listing; a nightly of 3 days at most.",
        },
    ),
    (
        ("--family",),
        {
            "metavar": "NAME,…",
            "help": "GPU families of the build.  [default: from --targets]",
        },
    ),
    (("--therock-listing",), {"metavar": "URL", "help": "Page that lists the builds."}),
    (
        ("--therock-index-url",),
        {"metavar": "URL", "help": "ROCm from the pip packages of an index."},
    ),
    (
        ("--therock-version",),
        {
            "metavar": "X.Y.Z",
            "help": "Version of the index's packages.  [default: the newest]",
        },
    ),
    (
        ("--therock-sha256",),
        {"metavar": "HEX", "help": "Expected sha256 of the tarball."},
    ),
    (
        ("--require-checksum",),
        {
            **FLAG,
            "help": "Refuse a ROCm without a given, locked or published checksum.",
        },
    ),
    (
        ("--rocm-lock",),
        {"metavar": "FILE", "help": "Lock file that records the exact ROCm."},
    ),
    (("--locked",), {**FLAG, "help": "Refuse any ROCm except the locked one."}),
    (
        ("--rocm-full", "--full", "rocm_full"),
        {**FLAG, "help": "Also unpack files that no build needs."},
    ),
    (
        ("--no-tarball-cache",),
        {**FLAG, "help": "Do not keep the tarball in the cache."},
    ),
    (
        ("--cache-limit",),
        {"metavar": "SIZE", "help": "Total size of the cached ROCm trees."},
    ),
    (
        ("--rocm-build-job",),
        {"metavar": "NAME", "help": "ROCm from an internal build job."},
    ),
    (
        ("--rocm-build-num",),
        {
            "metavar": "N",
            "help": "Build number of the job.  [default: lastSuccessfulBuild]",
        },
    ),
    (
        ("--rocm-build-url",),
        {
            "metavar": "TEMPLATE",
            "help": "URL of the job's tarball, with {job}, {num}, {version}.",
        },
    ),
    (
        ("--rocm-manifest",),
        {
            "metavar": "FILE|DIR",
            "help": "Manifest of the ROCm in a set, or the ROCm's tree.",
        },
    ),
)
_SOURCE_OPTIONS: Table = (
    (
        ("--xla",),
        {
            "metavar": "pin|head|COMMIT",
            "help": "XLA to compile; `pin` is the commit that jax pins.",
        },
    ),
    (
        ("--xla-source-dir",),
        {"metavar": "DIR", "help": "XLA checkout to compile instead of --xla."},
    ),
    (
        ("--jax-source-dir",),
        {"metavar": "DIR", "help": "jax checkout to build, with its jaxlib."},
    ),
    (
        ("--source-mirror",),
        {
            "metavar": "URL|DIR",
            "help": "Mirror of jax-ml/jax, openxla/xla and ROCm/rocm-jax.",
        },
    ),
    (
        ("--clang-path",),
        {
            "metavar": "FILE",
            "help": (
                "Path of the host clang in the build environment.  [default: the"
                " newest; for ROCm wheels since jax 0.10.2, the clang that Bazel"
                " downloads]"
            ),
        },
    ),
    (
        ("--bazel-path",),
        {
            "metavar": "FILE",
            "help": "Bazel of a --host build.  [default: the pinned one]",
        },
    ),
    (
        ("--one-target",),
        {**FLAG, "help": "Build only the first target and Python, without jaxlib."},
    ),
    (
        ("--host", "--no-docker", "host"),
        {**FLAG, "help": "Build on this machine instead of in a container."},
    ),
)
_REMOTE_OPTIONS: Table = (
    (
        ("--rbe",),
        {
            **FLAG,
            "help": (
                "Build on remote executors; fall back to local execution when they"
                " fail."
            ),
        },
    ),
    (
        ("--rbe-endpoint",),
        {"metavar": "URL", "help": "Remote executors: grpc://… or grpcs://…."},
    ),
    (
        ("--no-rbe-fallback",),
        {
            **FLAG,
            "help": "Fail instead of building locally when remote execution fails.",
        },
    ),
    (
        ("--rbe-ca",),
        {
            "metavar": "FILE",
            "help": "CA bundle that verifies the remote executors and --remote-cache.",
        },
    ),
    (
        ("--rbe-cert",),
        {
            "metavar": "FILE",
            "help": "Client certificate for the executors and --remote-cache.",
        },
    ),
    (
        ("--rbe-key",),
        {"metavar": "FILE", "help": "Private key of the client certificate."},
    ),
    (
        ("--rbe-credential-helper",),
        {"metavar": "FILE", "help": "Program from which Bazel gets request headers."},
    ),
    (
        ("--rbe-bazelrc",),
        {
            "metavar": "FILE",
            "help": "bazelrc with further options, such as --remote_header.",
        },
    ),
    (
        ("--rbe-platform",),
        {"metavar": "LABEL|none", "help": "Bazel platform of the executors."},
    ),
    (("--rbe-jobs",), {"metavar": "N", "help": "Number of parallel actions."}),
    (("--remote-cache",), {"metavar": "URL", "help": "Shared action cache."}),
    (("--disk-cache",), {"metavar": "DIR", "help": "Action cache in a directory."}),
    (
        ("--cache-read-only",),
        {
            **FLAG,
            "help": "Read --remote-cache and --disk-cache without writing to them.",
        },
    ),
)
SOURCE_OPTIONS: Table = (*_SOURCE_OPTIONS, *_REMOTE_OPTIONS)
"""Options of a source build."""
_IMAGE_OPTIONS: Table = (
    (
        ("--base-docker",),
        {
            "metavar": "IMAGE",
            "help": "Base image of a new image, instead of the pinned one.",
        },
    ),
    (
        ("--builder-image", "-b"),
        {
            "metavar": "IMAGE|search",
            "help": "Builder image; `search` does not build one.",
        },
    ),
    (
        ("--image-registry",),
        {
            "metavar": "HOST[/PATH]",
            "help": "Registry of built images, to search and push them.",
        },
    ),
    (
        ("--container-engine",),
        {
            "metavar": "docker|podman|FILE",
            "help": "Engine.  [default: the first found]",
        },
    ),
    (
        ("--container-network",),
        {"metavar": "NAME", "help": "Network of a container: host, none or a name."},
    ),
    (
        ("--container-memory",),
        {"metavar": "SIZE", "help": "Memory limit of a container, such as 64g."},
    ),
    (
        ("--container-shm-size",),
        {"metavar": "SIZE", "help": "Size of /dev/shm in a container."},
    ),
)
_KERNEL_OPTIONS: Table = (
    (
        ("--kernels",),
        {**FLAG, "help": "Also build the kernel modules: wheel jax_aiter."},
    ),
    (
        ("--aiter-source",),
        {
            "metavar": "DIR|FILE|amd-aiter==X",
            "help": "AITER's sources.  [default: the pinned ones]",
        },
    ),
    (
        ("--kernel-toolchain", "--toolchain", "kernel_toolchain"),
        {"metavar": "NAME", "help": "Compilers: pypi, rocm or container."},
    ),
    (
        ("--kernel-rocm",),
        {"metavar": "DIR", "help": "ROCm of the toolchains rocm and container."},
    ),
    (
        ("--kernel-image",),
        {"metavar": "IMAGE", "help": "Image of the toolchain container."},
    ),
    (
        ("--kernel-modules", "--modules", "kernel_modules"),
        {"metavar": "NAME,…", "help": "Kernel modules to build.  [default: all]"},
    ),
    (
        ("--kernel-instances", "--instances", "kernel_instances"),
        {
            "metavar": "REGEX",
            "help": "Generated kernels to build, matched by name.  [default: all]",
        },
    ),
    (
        ("--require",),
        {"metavar": "NAME,…", "help": "Kernel modules that every target must have."},
    ),
    (
        ("--allow-partial",),
        {
            **FLAG,
            "help": (
                "Omit kernel modules that cannot be built; mark the wheel as partial."
            ),
        },
    ),
)
_RUN_OPTIONS: Table = (
    (("--out",), {"metavar": "DIR", "help": "Output directory of the wheel set."}),
    (
        ("--cache-dir",),
        {
            "metavar": "DIR",
            "help": "Cache of downloads and finished steps.  [default: user's cache]",
        },
    ),
    (
        ("--dry-run",),
        {**FLAG, "help": "Print every command and effect without running anything."},
    ),
    (("--json",), {**FLAG, "help": "Print the result as JSON on standard output."}),
    (("--verbose", "-v"), {**FLAG, "help": "Also print commands and their output."}),
    (
        ("--quiet", "-q"),
        {**FLAG, "help": "Print only warnings, errors and results for programs."},
    ),
)
_GROUPS: Mapping[str, Table] = {
    "Wheels": _WHEEL_OPTIONS,
    "ROCm": _ROCM_OPTIONS,
    "Source build": _SOURCE_OPTIONS,
    "Remote execution and action caches": _REMOTE_OPTIONS,
    "Images and containers": _IMAGE_OPTIONS,
    "Kernels": _KERNEL_OPTIONS,
    "Output": _RUN_OPTIONS,
}
"""Title of a help section -> its options."""
_OPTIONS: Table = tuple(row for table in _GROUPS.values() for row in table)


def _identifier(names: tuple[str, ...]) -> str:
    """Return the name of an option's value: the explicit one, else the first option."""
    return next(
        (name for name in names if not name.startswith("-")),
        names[0].lstrip("-").replace("-", "_"),
    )


REFUSED_WITH_PUBLISHED = (
    *(
        "rocm_build_job",
        "rocm_build_num",
        "rocm_build_url",
        "base_docker",
        "builder_image",
    ),
    *(_identifier(names) for names, _ in SOURCE_OPTIONS),
)
"""Options of a source build that contradict `--payload=published`."""
CONTAINER_OPTIONS = (
    *("image_registry", "container_engine"),
    *("container_network", "container_memory", "container_shm_size"),
)
"""Options about containers, which the environment may set for a whole machine."""
SWITCHES = tuple(_identifier(names) for names, more in _OPTIONS if more.get("is_flag"))
"""Options without a value."""
KERNEL_TOOLCHAINS = ("pypi", "rocm", "container")
"""Sources of the compilers of kernels."""
NEEDS_KERNELS = tuple(
    name
    for name in (_identifier(names) for names, _ in _KERNEL_OPTIONS)
    if name != "kernels"
)
"""Options of the kernel build, which need `--kernels`."""


def path_options() -> frozenset[str]:
    """Return the identifiers of the options whose value may be a path of this machine."""
    return frozenset(
        _identifier(names)
        for names, more in _OPTIONS
        if {"DIR", "FILE"} & {*re.split(r"\W", more.get("metavar", ""))}
    )


def build_options(*tables: str, hidden: bool = False) -> Callable[[_F], _F]:
    """Return a decorator that adds every build option to a group or command, in titled groups.

    Args:
        tables: tables of defaults.toml for the defaults in the help; the first table
            that contains an option counts.
        hidden: whether the help omits the options.
    """
    return chosen_options(
        *map(_identifier, (names for names, _ in _OPTIONS)),
        tables=tables,
        hidden=hidden,
    )


def chosen_options(
    *chosen: str, tables: Sequence[str] = ("build",), hidden: bool = False
) -> Callable[[_F], _F]:
    """Return a decorator that adds the build options with these identifiers.

    See `build_options` for the arguments.
    """

    def decorate(function: _F) -> _F:
        for title, rows in reversed([*_GROUPS.items()]):
            options = [
                cloup.option(
                    *names,
                    **{
                        "default": None,
                        **attributes,
                        "help": _help(names, attributes, tables),
                    },
                )
                for names, attributes in rows
                if _identifier(names) in chosen
            ]
            if options:
                function = cloup.option_group(title, *options, hidden=hidden)(function)
        return function

    return decorate


def _help(
    names: tuple[str, ...], attributes: Mapping[str, Any], tables: Sequence[str]
) -> str:
    """Return an option's help with its default from defaults.toml."""
    text = str(attributes["help"])
    values = (defaults()[table].get(_identifier(names)) for table in tables)
    default = next((value for value in values if value is not None), None)
    return text if default is None else f"{text}  [default: {default}]"


def variable_of(names: Sequence[str], text: str) -> str:
    """Return the identifier of the option of this module with these names and this help.

    Empty if there is none.

    Other options may share a name, such as `--out`, but the environment does not set
    them.
    """
    for row, attributes in _OPTIONS:
        own = tuple(name for name in row if name.startswith("-"))
        if own == tuple(names) and text.startswith(str(attributes["help"])):
            return _identifier(row)
    return ""


def option_names() -> tuple[str, ...]:
    """Return the options' names as identifiers, such as python_versions."""
    return tuple(_identifier(names) for names, _ in _OPTIONS)
