"""Options of a build, in the groups of the help.

click reads each from the command line, else from its environment variable, else from
the project file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, starmap

import cloup

from ci_build.cli.options.shared_options import Function, flags_and_form, option
from core.defaults import defaults
from core.frozen import frozen
from core.model import Payload
from core.targets import DEFAULT


@frozen
class BuildOption:
    """An option of a build.

    Attributes:
        name: identifier of its value, such as python_versions.
        declaration: flags and form of the value.
        form: form of its value; empty for a switch or a choice.
        help: help without the default of defaults.toml.
    """

    name: str
    declaration: str
    form: str
    help: str

    @property
    def is_switch(self) -> bool:
        """True for an option without a value."""
        return not self.form and self.name not in _CHOICES

    def decorator(
        self, tables: Sequence[str], *, read: bool
    ) -> Callable[[Function], Function]:
        """Return the decorator of click.

        Args:
            tables: tables of defaults.toml for the default in the help; the first table
                that contains the option counts.
            read: whether the environment and the project file set it too.
        """
        text = self.help
        values = [
            defaults()[table][self.name]
            for table in tables
            if self.name in defaults()[table]
        ]
        if values and "[default:" not in text:
            shown = values[0] if values[0] != DEFAULT else "see `ci_build targets`"
            text += f"  [default: {shown}]"
        return option(
            self.declaration,
            text,
            choices=_CHOICES.get(self.name, ()),
            variable=read,
            expose_value=read,
            default=None,
        )


_CHOICES = {
    "payload": tuple(Payload),
    "compiler": ("clang", "gcc"),
    "jax_source": ("jax-ml", "amd"),
    "attention": ("asm", "common", "all"),
}
_GROUPS: Mapping[str, Mapping[str, str]] = {
    "Wheels": {
        "--payload": "Origin of the native code: compiled, or copied from published wheels.",
        "--jax-version X.Y.Z|X.Y": (
            "Release of jax; X.Y is its newest one.  [default: the newest one for the Pythons and"
            " the ROCm]"
        ),
        "--python-versions X.Y,…": "Python versions.",
        "--rocm-version X.Y.Z": (
            "ROCm of the native code; a source build downloads it from AMD.  [default: of "
            "published wheels]"
        ),
        "--targets --rocm_amdgpu_targets GFX,…|native": (
            "GPU targets or families, or `native`: the GPUs of this machine."
        ),
        "--wheel-post-release N": "Append .postN to every version.",
        "--platform-tag auto|manylinux_2_N": (
            "Platform tag of the wheels; `auto` is the lowest true one.  [default: auto; "
            "manylinux_2_28 for a source build]"
        ),
        "--no-rocm-version-extra": "Omit the +rocm… suffix from versions.",
        "--no-strip": "Keep the symbol tables of libraries.",
        "--compiler": "Host compiler of a source build.",
        "--find-links DIR|URL,…": "Folders or pages of wheels that pip uses beside its index.",
    },
    "ROCm": {
        "--therock-path URL|FILE|DIR": "ROCm as a tarball or a folder, such as /opt/rocm.",
        "--therock nightly|latest|X.Y.Z": (
            "ROCm of --therock-listing: the newest nightly, which must not be older than 3 days, "
            "the newest release, or a version."
        ),
        "--family NAME,…": "GPU families of the build.  [default: from --targets]",
        "--therock-listing URL": "Page that lists the builds.",
        "--therock-index-url URL": (
            "ROCm from the pip packages of an index; the newest without --rocm-version."
        ),
        "--therock-sha256 HEX": "Expected sha256 of the tarball.",
        "--require-checksum": "Refuse a ROCm without a given, locked or published checksum.",
        "--rocm-lock FILE": "Lock file that records the exact ROCm.",
        "--locked": "Refuse any ROCm except the locked one.",
        "--cache-limit SIZE": "Total size of the cached ROCm trees.",
        "--rocm-build-job NAME": (
            "Internal build job, for --therock-path with {job}, {num}, {version}."
        ),
        "--rocm-build-num N": "Build number of the job.  [default: lastSuccessfulBuild]",
        "--rocm-manifest FILE|DIR": "Manifest of the ROCm in a set, or the ROCm's tree.",
        "--hash-rocm": "Record the digests of the ROCm's wheels that users install.",
    },
    "Source build": {
        "--xla pin|head|COMMIT": "XLA to compile; `pin` is the commit that jax pins.",
        "--xla-source-dir DIR": "XLA checkout to compile instead of --xla.",
        "--jax-source": "Repository of jax: jax-ml/jax, or ROCm/jax at the commit of AMD's wheels.",
        "--jax-source-dir DIR": "jax checkout to build, with its jaxlib.",
        "--source-mirror URL|DIR": "Mirror of jax-ml/jax, openxla/xla and ROCm/rocm-jax.",
        "--clang-path FILE": (
            "Host clang in the build environment.  [default: the newest, or Bazel's]"
        ),
        "--bazel-path FILE": "Bazel of a --host build.  [default: the pinned one]",
        "--one-target": "Build only the first target and Python, without jaxlib.",
        "--host": "Build on this machine instead of in a container.",
    },
    "Remote execution and action caches": {
        "--rbe": (
            "Build on remote executors; without --rbe-bazelrc, fall back to local execution when "
            "they fail."
        ),
        "--rbe-endpoint URL": "Remote executors: grpc://… or grpcs://….",
        "--rbe-bazelrc FILE": (
            "bazelrc with certificates, headers, platform, jobs and fallback; the files that it "
            "names lie in its folder."
        ),
        "--action-cache URL|DIR": "Bazel's cache for results of actions: a server, or a folder.",
    },
    "Images and containers": {
        "--base-docker IMAGE": "Base image of a new image, instead of the pinned one.",
        "--builder-image -b IMAGE|search": "Builder image; `search` does not build one.",
        "--image-registry HOST[/PATH]": "Registry of built images, to search and push them.",
        "--container-engine docker|podman|FILE": "Engine.  [default: the first found]",
        "--container-args 'OPTION…'": (
            "Further options of a container, such as '--memory=64g --network=none'."
        ),
    },
    "Kernels": {
        "--kernels": "Also build the kernel modules: wheel jax_aiter.",
        "--aiter-source DIR|sdist": (
            "Checkout of AITER, or `sdist` for its release on the package index.  [default: the "
            "pinned commit, from GitHub]"
        ),
        "--kernel-rocm DIR": (
            "ROCm that compiles the kernels.  [default: compilers of the package index]"
        ),
        "--attention": (
            "Composable Kernel's attention beside AITER's assembly: none, a choice of an hour of "
            "CPU, or all of 90 hours.  [default: common with --kernel-rocm, else asm]"
        ),
        "--kernel-modules NAME,…": "Kernel modules to build.  [default: all]",
        "--kernel-instances REGEX": "Generated kernels to build, matched by name.  [default: all]",
        "--require NAME,…": "Kernel modules that every target must have.",
        "--allow-partial": "Omit kernel modules that cannot be built; mark the wheel as partial.",
    },
    "Output": {
        "--out DIR": "Output directory of the wheel set.",
        "--cache-dir DIR": "Cache of downloads and finished steps.  [default: user's cache]",
        "--dry-run": "Print every command and effect without running anything.",
        "--json": "Print the result as JSON on standard output.",
        "--verbose -v": "Also print commands and their output.",
        "--quiet -q": "Print only warnings, errors and results for programs.",
    },
}
"""Title of a help section -> flags and form of the value of an option -> its help."""


def _option(declaration: str, text: str) -> BuildOption:
    """Return the option of a row of `_GROUPS`."""
    flags, form = flags_and_form(declaration)
    name = flags[0].lstrip("-").replace("-", "_")
    return BuildOption(name=name, declaration=declaration, form=form, help=text)


_SECTIONS = {
    title: tuple(starmap(_option, rows.items())) for title, rows in _GROUPS.items()
}
_OPTIONS = {option.name: option for option in chain.from_iterable(_SECTIONS.values())}


def _names(title: str) -> tuple[str, ...]:
    """Return the names of the options in a group."""
    return tuple(option.name for option in _SECTIONS[title])


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
USUAL = (
    "payload",
    "jax_version",
    "python_versions",
    "rocm_version",
    "targets",
    "therock_path",
    "out",
    "dry_run",
    "json",
)
"""Options that the help of long commands shows without --help-all."""
SWITCHES = tuple(name for name, option in _OPTIONS.items() if option.is_switch)
"""Options without a value."""
NEEDS_KERNELS = tuple(name for name in _names("Kernels") if name != "kernels")
"""Options of the kernel build, which need `--kernels`."""
_WORDS = {
    name: frozenset(re.split(r"\W", option.form)) for name, option in _OPTIONS.items()
}
PATHS = {name: words for name, words in _WORDS.items() if words & {"DIR", "FILE"}}
"""Options whose value may be a path of this machine -> the words that it may be instead."""


def option_names() -> tuple[str, ...]:
    """Return the options' names as identifiers, such as python_versions."""
    return tuple(_OPTIONS)


def option_texts() -> Mapping[str, str]:
    """Return identifiers of the options with their help."""
    return {name: option.help for name, option in _OPTIONS.items()}


def build_options(*tables: str) -> Callable[[Function], Function]:
    """Return a decorator that adds every build option to a group or command, in titled groups.

    See `chosen_options` for the arguments.
    """
    return chosen_options(*_OPTIONS, tables=tables)


def chosen_options(
    *chosen: str, tables: Sequence[str] = ("build",), read: bool = True
) -> Callable[[Function], Function]:
    """Return a decorator that adds the build options with these identifiers.

    Args:
        tables: tables of defaults.toml for the defaults in the help; the first table
            that contains an option counts.
        read: whether the function gets values; else the help omits the options.
    """

    def decorate(function: Function) -> Function:
        for title, rows in reversed(_SECTIONS.items()):
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
