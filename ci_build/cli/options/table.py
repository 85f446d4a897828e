"""Every option of a build: its words, its help, and to which group it belongs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from core.model import Payload

_F = TypeVar("_F", bound=Callable[..., Any])
Table = tuple[tuple[tuple[str, ...], dict[str, Any]], ...]
"""Options as click takes them: their words, and what is said of each."""
FLAG = {"is_flag": True, "default": None}

_WHEEL_OPTIONS: Table = (
    (("--payload",), {"type": click.Choice([p.value for p in Payload]), "help": "Where native code comes from."}),
    (("--jax-version",), {"metavar": "X.Y.Z", "help": "Release of jax to build for."}),
    (("--python-versions",), {"metavar": "X.Y,…", "help": "Pythons to make wheels for."}),
    (("--rocm-version",), {"metavar": "X.Y.Z", "help": "ROCm that the native code is built against."}),
    (("--targets", "--rocm_amdgpu_targets", "targets"), {"metavar": "GFX,…", "help": "Targets or families."}),
    (("--wheel-post-release",), {"metavar": "N", "help": "Append .postN to every version."}),
    (("--no-rocm-version-extra",), {**FLAG, "help": "Leave +rocm… out of versions."}),
    (("--no-strip",), {**FLAG, "help": "Keep symbol tables inside the libraries."}),
    (("--compiler",), {"type": click.Choice(["clang", "gcc"]), "help": "Host compiler of a source build."}),
)  # fmt: skip
"""What is built: versions, Pythons, targets, and what the wheels say of themselves."""
_ROCM_OPTIONS: Table = (
    (("--therock-path",), {"metavar": "URL|FILE|DIR", "help": "The ROCm: a tarball or a folder."}),
    (("--therock",), {"metavar": "nightly|latest|X.Y.Z", "help": "The ROCm: the newest such build of a listing."}),
    (("--family",), {"metavar": "NAME,…", "help": "Families that it has to hold, such as gfx94X-dcgpu."}),
    (("--therock-index-url",), {"metavar": "URL", "help": "The ROCm: pip packages of this index."}),
    (("--therock-version",), {"metavar": "X.Y.Z", "help": "Version of these packages; the newest by default."}),
    (("--therock-listing",), {"metavar": "URL", "help": "The page that lists the builds."}),
    (("--therock-sha256",), {"metavar": "HEX", "help": "What the tarball's sha256 has to be."}),
    (("--rocm-lock",), {"metavar": "FILE", "help": "Where the ROCm is written down exactly."}),
    (("--locked",), {**FLAG, "help": "Refuse any ROCm but the one in the lock."}),
    (("--rocm-full", "--full", "rocm_full"), {**FLAG, "help": "Unpack also what no build needs."}),
    (("--no-tarball-cache",), {**FLAG, "help": "Keep no copy of the tarball."}),
    (("--cache-limit",), {"metavar": "SIZE", "help": "Size that the ROCms in the cache may have, such as 60GB."}),
    (("--rocm-build-job",), {"metavar": "NAME", "help": "ROCm of a source build: an internal build job."}),
    (("--rocm-build-num",), {"metavar": "N", "help": "Number of that job's build."}),
)  # fmt: skip
"""The ROCm that it is built against."""
SOURCE_OPTIONS: Table = (
    (("--xla-source-dir",), {"metavar": "DIR", "help": "XLA checkout for a source build."}),
    (("--jax-source-dir",), {"metavar": "DIR", "help": "jax checkout for a source build; also builds jaxlib."}),
    (("--xla",), {"metavar": "pin|head|COMMIT", "help": "The XLA that is compiled; jax's own pin by default."}),
    (("--source-mirror",), {"metavar": "URL|DIR", "help": "Where jax-ml/jax and its like are fetched from."}),
    (("--rbe",), {**FLAG, "help": "Build on remote executors, and here what they fail to take."}),
    (("--rbe-endpoint",), {"metavar": "URL", "help": "The executors: grpc://… or grpcs://…."}),
    (("--no-rbe-fallback",), {**FLAG, "help": "Fail where they fail, and build nothing here instead."}),
    (("--rbe-ca",), {"metavar": "FILE", "help": "Who may have signed their certificate, or that of --remote-cache."}),
    (("--rbe-cert",), {"metavar": "FILE", "help": "Client certificate for them, and for --remote-cache."}),
    (("--rbe-key",), {"metavar": "FILE", "help": "Its key."}),
    (("--rbe-credential-helper",), {"metavar": "FILE", "help": "Program that Bazel asks for the headers they want."}),
    (("--rbe-bazelrc",), {"metavar": "FILE", "help": "Options that Bazel reads itself, such as --remote_header."}),
    (("--rbe-platform",), {"metavar": "LABEL|none", "help": "What the executors are, as a platform of the sources."}),
    (("--rbe-jobs",), {"metavar": "N", "help": "Actions under way at once."}),
    (("--remote-cache",), {"metavar": "URL", "help": "Cache of actions that is shared."}),
    (("--disk-cache",), {"metavar": "DIR", "help": "Cache of actions in a folder."}),
    (("--cache-read-only",), {**FLAG, "help": "Take from these caches, put nothing there."}),
    (("--clang-path",), {"metavar": "FILE", "help": "Host clang, as the build sees it; by default the newest one."}),
    (("--host", "--no-docker", "host"), {**FLAG, "help": "Build on this machine itself, without a container."}),
    (("--one-target",), {**FLAG, "help": "A developer's loop: the first target, the first Python, no jaxlib."}),
    (("--rocm-build-url",), {"metavar": "TEMPLATE", "help": "URL of a job's tarball: {job}, {num}, {version}."}),
)  # fmt: skip
"""A build from source."""
_IMAGE_OPTIONS: Table = (
    (("--base-docker",), {"metavar": "IMAGE", "help": "Base image of a source build."}),
    (("--builder-image", "-b"), {"metavar": "IMAGE|search", "help": "Builder image of a source build."}),
    (("--image-registry",), {"metavar": "HOST[/PATH]", "help": "Registry that images are pulled from and pushed to."}),
    (("--container-engine",), {"metavar": "docker|podman|FILE", "help": "Engine that runs containers."}),
    (("--container-network",), {"metavar": "NAME", "help": "Network of a container: host, none or a name."}),
    (("--container-memory",), {"metavar": "SIZE", "help": "Memory that a container may use, such as 64g."}),
    (("--container-shm-size",), {"metavar": "SIZE", "help": "Size of /dev/shm in a container, such as 64g."}),
)  # fmt: skip
"""Images and containers."""
_KERNEL_OPTIONS: Table = (
    (("--kernels",), {**FLAG, "help": "Also build the kernel modules: wheel jax_aiter."}),
    (("--aiter-source",), {"metavar": "DIR|FILE|amd-aiter==X", "help": "AITER's sources for the kernels."}),
    (("--kernel-toolchain", "--toolchain", "kernel_toolchain"), {"metavar": "NAME", "help": "pypi, rocm, container."}),
    (("--kernel-rocm",), {"metavar": "DIR", "help": "ROCm of the toolchains rocm and container."}),
    (("--kernel-image",), {"metavar": "IMAGE", "help": "Image of the toolchain container."}),
    (("--kernel-modules", "--modules", "kernel_modules"), {"metavar": "NAME,…", "help": "Kernel modules to build."}),
    (("--kernel-instances", "--instances", "kernel_instances"),
     {"metavar": "REGEX", "help": "Only those generated kernels whose name this matches."}),
    (("--require",), {"metavar": "NAME,…", "help": "Kernel modules that every target has to have."}),
    (("--allow-partial",), {**FLAG, "help": "Leave kernel modules out, and mark the wheel."}),
)  # fmt: skip
"""The kernels."""
_RUN_OPTIONS: Table = (
    (("--rocm-manifest",), {"metavar": "FILE|DIR", "help": "What the ROCm exports: `rocm manifest` or its tree."}),
    (("--out",), {"metavar": "DIR", "help": "Folder for the wheel set."}),
    (("--cache-dir",), {"metavar": "DIR", "help": "Folder for fetched inputs and finished steps."}),
    (("--dry-run",), {**FLAG, "help": "Print every command and effect; touch nothing."}),
    (("--json",), {**FLAG, "help": "Print the result as JSON on standard output."}),
    (("--verbose", "-v"), {**FLAG, "help": "Also print commands and their output."}),
)  # fmt: skip
"""Where it goes and what is told."""
_OPTIONS: Table = (
    *_WHEEL_OPTIONS,
    *_ROCM_OPTIONS,
    *SOURCE_OPTIONS,
    *_IMAGE_OPTIONS,
    *_KERNEL_OPTIONS,
    *_RUN_OPTIONS,
)


def _identifier(names: tuple[str, ...]) -> str:
    """The name of an option's value: the one that is given as such, else the first one."""
    return next((name for name in names if not name.startswith("-")), names[0].lstrip("-").replace("-", "_"))


REFUSED_WITH_PUBLISHED = (
    "rocm_build_job",
    "rocm_build_num",
    "base_docker",
    "builder_image",
    *(_identifier(names) for names, _ in SOURCE_OPTIONS),
)
"""Options of a source build that contradict `--payload=published`."""
CONTAINER_OPTIONS = (
    "image_registry",
    "container_engine",
    "container_network",
    "container_memory",
    "container_shm_size",
)
"""Options about containers: the environment may set them for a whole machine, whatever is built on it."""
SWITCHES = tuple(_identifier(names) for names, more in _OPTIONS if more.get("is_flag"))
"""Options without a value."""
WARNED_WITH_PUBLISHED = ("compiler",)
"""Options of a source build that `--payload=published` has no use for."""
KERNEL_TOOLCHAINS = ("pypi", "rocm", "container")
"""Where the compilers of kernels come from."""
NEEDS_KERNELS = (
    "aiter_source", "kernel_toolchain", "kernel_rocm", "kernel_image", "kernel_modules", "kernel_instances",
    "require", "allow_partial",
)  # fmt: skip
"""Options that say how kernels are built, and so need `--kernels`."""


def build_options(function: _F) -> _F:
    """Give a group or command every build option; `settings` merges what both got."""
    for names, attributes in reversed(_OPTIONS):
        function = click.option(*names, **{"default": None, **attributes})(function)
    return function


def chosen_options(*chosen: str) -> Callable[[_F], _F]:
    """Give a command some of the build options, by their names as identifiers."""
    known = {_identifier(names): (names, attributes) for names, attributes in _OPTIONS}

    def give(function: _F) -> _F:
        for name in reversed(chosen):
            names, attributes = known[name]
            function = click.option(*names, **{"default": None, **attributes})(function)
        return function

    return give


def option_names() -> tuple[str, ...]:
    """The options' names as identifiers, such as python_versions."""

    @click.command()
    @build_options
    def probe(**_: object) -> None:
        """Holds the options."""

    return tuple(parameter.name for parameter in probe.params if parameter.name)
