"""Data types of the kernel catalog: modules, their parts, and the support of gfx targets."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from core import targets as table
from core.errors import RequestError
from core.frozen import frozen
from core.model import GfxTarget

GENERATORS = Path(__file__).with_name("generators")
"""Drivers that run the source's generators."""
EVERY = "every"
"""Value of `targets` that means every target of the gfx table."""


class ModuleKind(enum.StrEnum):
    """Content of a module.

    co-launcher: a host library that launches AITER's prebuilt code objects.
    portable: a host library and HIP kernels of this project, compiled for any target.
    device-lib: device code generated from AITER's sources, compiled by a ROCm.
    ffi-shim: a library of handlers and of the device-libs that they call through their
    C++ ABI.
    """

    CO_LAUNCHER = "co-launcher"
    PORTABLE = "portable"
    DEVICE_LIB = "device-lib"
    FFI_SHIM = "ffi-shim"


class Support(enum.StrEnum):
    """Support of a target by a module: the module itself, a portable replacement, or nothing."""

    YES = "yes"
    PORTABLE = "portable"
    UNSUPPORTED = "unsupported"


@frozen
class SourceArchive:
    """A source archive of a package index; `size` in bytes."""

    project: str
    version: str
    filename: str
    sha256: str
    size: int


@frozen
class UpstreamSource:
    """Origin of a module's upstream files.

    Attributes:
        url, commit: git repository, and the full id of the pinned commit.
        submodules: folder of a submodule -> its repository. A submodule is fetched only
            if a module uses its files.
        sdist: release for machines without access to the repository.
    """

    name: str
    url: str
    commit: str
    submodules: Mapping[str, str]
    sdist: SourceArchive

    def describe(self, kind: str) -> str:
        """Return the display name of the pinned commit or of the sdist."""
        return f"{self.name}-{self.commit}" if kind == "commit" else self.sdist.filename

    def submodules_of(self, modules: Iterable[KernelModule]) -> tuple[str, ...]:
        """Return the submodules that some modules use."""
        folders: list[str] = []
        for module in modules:
            folders += module.source_folders
        return tuple(
            path
            for path in self.submodules
            if any(name.startswith(path) for name in folders)
        )


@frozen
class FfiHandler:
    """One XLA FFI handler.

    Attributes:
        target: name that `jax.ffi.ffi_call` uses.
        symbol: exported symbol of the library.
        api: XLA FFI API version (major, minor) that the handler's metadata must
            declare.
        command_buffer: whether the handler declares that its work may be recorded into
            a command buffer.
        args, results, attrs: inputs, outputs and attributes, such as "a bf16[M,K]";
            documentation, compared with the Python package by a test.
    """

    target: str
    symbol: str
    api: tuple[int, int]
    command_buffer: bool
    args: tuple[str, ...]
    results: tuple[str, ...]
    attrs: tuple[str, ...] = ()


@frozen
class CodeObjectSet:
    """Code objects of a co-launcher for some targets, and their tables.

    Attributes:
        targets: processors; `{target}` in `folder` is replaced by each of them.
        folder: folder of the code objects, relative to the source's folder.
        files: patterns of their names; a source may lack those of some patterns.
        kernarg: bytes of kernel arguments that the host packs; no code object may need
            more.
        table: pattern of the name of AITER's table of the kernels, in `folder`; empty
            for none. The wheel has its rows for these code objects.
        tuned: patterns of AITER's tables of the fastest kernels, paths from the top of
            its Python package's parent folder; `jax_aiter` chooses by the rows for
            these code objects.
        sku: subfolder for a variant of the target, such as MI308; empty for all
            variants.
        compute_units: numbers of compute units that identify the variant. The module
            has no code for GPUs of the target with another number.
    """

    targets: tuple[str, ...]
    folder: str
    files: tuple[str, ...]
    kernarg: int
    table: str = ""
    tuned: tuple[str, ...] = ()
    sku: str = ""
    compute_units: tuple[int, ...] = ()

    def patterns(self, target: str) -> list[str]:
        """Return the patterns of the paths of a target's code objects and table."""
        folder = self.folder.replace("{target}", target)
        return [f"{folder}/{name}" for name in (*self.files, self.table) if name]


@frozen
class Unit:
    """One piece of device code that is compiled once for each target.

    Attributes:
        name: name of the code object without the suffix `.co`.
        source: path of the source below `kernels/src`.
        kernels: exact set of kernel symbols that the source defines.
        seconds, memory_mb: cost for one target with the slowest compiler; orders and
            limits the jobs.
    """

    name: str
    source: str
    kernels: tuple[str, ...]
    seconds: float = 1.0
    memory_mb: int = 200


@frozen
class Generator:
    """A program of the source that writes translation units.

    Attributes:
        script: path below the source's folder; run by the current Python interpreter.
        arguments: words of the command; `{out}` is the output folder, `{source}` the
            source's folder, `{keep}` the first pattern of `keep`, `{instances}` the
            pattern of instance names for the driver, empty for all.
        driver: program in `kernels/generators` that runs instead of the script, with
            the script as its first argument.
        suffix: suffix of the files that are compiled.
        count: exact number of files with that suffix; the maximum if instances are
            restricted.
        common: pattern of the instances of `--attention=common`; empty for all.
        common_count: exact number of files of these instances, all of them kept.
        keep: regular expressions; files whose name matches one of them are compiled.
            Empty keeps all.
        kept: exact number of kept files; the maximum if instances are restricted.
    """

    script: str
    arguments: tuple[str, ...]
    suffix: str
    count: int
    kept: int
    keep: tuple[str, ...] = ()
    driver: str = ""
    common: str = ""
    common_count: int = 0

    def pattern(self, attention: str) -> str:
        """Return the pattern of the instances for `--attention`; empty for all."""
        return "" if attention == "all" else self.common

    def counts(self, pattern: str) -> tuple[int, int]:
        """Return the numbers of written and of kept files for `common` or all instances."""
        few = pattern and (self.common_count, self.common_count)
        return few or (self.count, self.kept)


@frozen
class KernelModule:
    """One module of `modules.toml`.

    Attributes:
        name: name of the module; the library is `lib<name>.so`.
        source: name of the upstream source; empty for modules of this project.
        targets: processors that the module has code for; (EVERY,) for all of the gfx
            table.
        fallback: portable module that serves other targets; empty for none.
        attention: whether the module belongs to Composable Kernel's attention, which
            `--attention=asm` leaves out.
        host: C++ files of the library, below `kernels/src`.
        needs: device-libs that are linked into an ffi-shim.
        toolchains: toolchains that can build the module.
        headers: folders or files of the source that the units include.
        include: folders of `headers` on the include path.
        only: regular expression -> processors. Generated units whose name matches have
            device code for these processors only; for none if they contain no kernels,
            such as a dispatcher.
        flags: toolchain -> compiler flags for a device-lib or an ffi-shim.
        seconds, memory_mb: estimated CPU seconds and megabytes: of each generated unit,
            or of the library with all its files. Libraries that share files cost less
            together.
    """

    name: str
    kind: ModuleKind
    about: str
    targets: tuple[str, ...]
    host: tuple[str, ...]
    seconds: float
    memory_mb: int
    source: str = ""
    fallback: str = ""
    attention: bool = False
    needs: tuple[str, ...] = ()
    toolchains: tuple[str, ...] = ("pypi", "rocm")
    headers: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ffi: tuple[FfiHandler, ...] = ()
    objects: tuple[CodeObjectSet, ...] = ()
    units: tuple[Unit, ...] = ()
    generators: tuple[Generator, ...] = ()

    def supports(self, processor: str) -> bool:
        """Return whether the module has, or can have, code for exactly that processor."""
        return EVERY in self.targets or processor in self.targets

    def compiles(self, unit: str, processor: str) -> bool:
        """Return whether a generated unit has device code for a processor."""
        limits = [
            targets
            for pattern, targets in self.only.items()
            if re.fullmatch(pattern, unit)
        ]
        return self.supports(processor) and all(
            processor in targets for targets in limits
        )

    @property
    def source_folders(self) -> tuple[str, ...]:
        """Folders of the source whose files the module compiles or runs."""
        # A generator imports modules from its own folder.
        scripts = (generator.script.rpartition("/")[0] for generator in self.generators)
        return (*self.headers, *scripts)

    @property
    def library(self) -> str:
        """File name of the module's library."""
        return f"lib{self.name}.so"


@frozen
class Catalog:
    """Content of `modules.toml`, in dependency order."""

    sources: Mapping[str, UpstreamSource]
    modules: Mapping[str, KernelModule]

    def chosen(
        self, names: Sequence[str] | None, toolchain: str = ""
    ) -> tuple[KernelModule, ...]:
        """Return the named modules and their dependencies, or all buildable modules.

        Raises:
            RequestError: a named module does not exist, or the toolchain cannot build
                it.
        """
        requested = set(self.modules if names is None else names)
        if unknown := sorted(requested - set(self.modules)):
            raise RequestError(
                f"Unknown kernel module: {', '.join(unknown)}.",
                hint=f"Choose from {', '.join(self.modules)}.",
            )
        if toolchain:
            cannot = [
                name
                for name in requested
                if toolchain not in self.modules[name].toolchains
            ]
            if cannot and names is not None:
                verb = (
                    "Omit" if "pypi" in self.modules[cannot[0]].toolchains else "Give"
                )
                raise RequestError(
                    f"The {toolchain} toolchain cannot build"
                    f" {', '.join(sorted(cannot))}.",
                    hint=f"{verb} --kernel-rocm.",
                )
            requested -= set(cannot)
        for module in reversed(list(self.modules.values())):
            if module.name in requested:
                requested |= set(module.needs)
        return tuple(
            module for module in self.modules.values() if module.name in requested
        )

    def support(self, module: KernelModule, processor: str) -> Support:
        """Return how a module supports a processor."""
        if module.supports(processor):
            return (
                Support.PORTABLE if module.kind is ModuleKind.PORTABLE else Support.YES
            )
        if module.fallback and self.modules[module.fallback].supports(processor):
            return Support.PORTABLE
        return Support.UNSUPPORTED


def processors(targets: Iterable[GfxTarget]) -> tuple[str, ...]:
    """Return the processors of targets, without duplicates, in natural order.

    Kernels are compiled for any setting of xnack and sramecc, so a target with such a
    suffix uses its processor's code.
    """
    return tuple(dict.fromkeys(target.processor for target in table.in_order(targets)))
