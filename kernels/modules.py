"""What kernel modules there are (`modules.toml`) and which of them a gfx target gets; `schema.py` checks the file."""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from core import targets as table
from core.errors import RequestError
from core.model import GfxTarget

MODULES_TOML = Path(__file__).with_name("modules.toml")
GENERATORS = Path(__file__).with_name("generators")
"""Programs that run in the place of the source's generators."""
EVERY = "every"
"""In `targets`: whatever the gfx table has."""


class Kind(enum.StrEnum):
    """What a module is made of.

    co-launcher: a host library that launches code objects which AITER ships ready-made.
    portable: a host library and kernels of our own in HIP, compiled here for any target.
    device-lib: device code generated from AITER's sources, compiled by a ROCm.
    ffi-shim: a library of handlers and of the device-libs that they call through their C++ ABI.
    """

    CO_LAUNCHER = "co-launcher"
    PORTABLE = "portable"
    DEVICE_LIB = "device-lib"
    FFI_SHIM = "ffi-shim"


class Support(enum.StrEnum):
    """What a target gets of a module: the module itself, kernels of our own instead, or nothing."""

    YES = "yes"
    PORTABLE = "portable"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Where a module's upstream files come from.

    Attributes:
        project, version: on a package index.
        filename, sha256, size: of its source archive; size in bytes.
        folder: the folder, inside archive or checkout, that paths in `modules.toml` are relative to; empty for the
            top. A checkout has AITER's folders at its top, an archive below `aiter_meta`.
    """

    name: str
    project: str
    version: str
    filename: str
    sha256: str
    size: int
    folder: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FfiTarget:
    """One XLA FFI handler.

    Attributes:
        target: name that `jax.ffi.ffi_call` uses.
        symbol: what the library exports.
        api: XLA FFI API version (major, minor) that its metadata has to say.
        command_buffer: it declares that its work may be recorded into a command buffer.
        args, results, attrs: what it takes and gives, for people and for the Python side: "a bf16[M,K]".
    """

    target: str
    symbol: str
    api: tuple[int, int]
    command_buffer: bool
    args: tuple[str, ...]
    results: tuple[str, ...]
    attrs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Objects:
    """Code objects of a co-launcher for some targets, and the table that names them.

    Attributes:
        targets: processors; `{target}` in `folder` stands for each.
        folder: where they lie, relative to the source's folder.
        csv: table in that folder with a row for each kernel; empty when `files` names them.
        kernel_column, file_column: columns of the table.
        files: file name -> kernel symbol, where there is no table.
        count: code objects for each target: no more, no fewer.
        kernarg: bytes of kernel arguments that the host packs; no object may want more.
        sku: subfolder for a variant of the target, such as MI308; empty for all.
        compute_units: numbers of compute units that tell the variant. A GPU of the target with another number has no
            code objects of this module.
    """

    targets: tuple[str, ...]
    folder: str
    count: int
    kernarg: int
    csv: str = ""
    kernel_column: str = ""
    file_column: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    sku: str = ""
    compute_units: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """One piece of device code that is compiled once for each target.

    Attributes:
        name: of the code object, `<name>.co`.
        source: below `kernels/src`.
        kernels: symbols that it has to define, exactly.
        defines: macros.
        seconds, memory_mb: measured for one target, with the slowest compiler; they order and limit the jobs.
    """

    name: str
    source: str
    kernels: tuple[str, ...]
    defines: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 1.0
    memory_mb: int = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Generator:
    """A program of the source that writes translation units.

    Attributes:
        script: below the source's folder; run by this program's Python, its exit status counts.
        arguments: `{out}` is the folder to write to, `{source}` the source's folder, `{keep}` the first of `keep`,
            `{instances}` what names of instances have to match, for its driver; empty for all.
        driver: program of ours in `kernels/generators` that is run instead; its first argument is the script.
        suffix: what it writes that is compiled.
        count: files with that suffix that it writes, exactly; at most, where not all instances are wanted.
        keep: regular expressions; a file is compiled when its name matches one. Empty keeps all.
        kept: how many that are, exactly; at most, where not all instances are wanted.
    """

    script: str
    arguments: tuple[str, ...]
    suffix: str
    count: int
    kept: int
    keep: tuple[str, ...] = ()
    driver: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Module:
    """One module of `modules.toml`.

    Attributes:
        name: the library is `lib<name>.so`.
        source: name of the upstream source; empty for modules of our own.
        targets: processors that it has code for; (EVERY,) for all of the gfx table.
        fallback: portable module that serves targets outside of `targets`; empty when there is none.
        host: C++ files below `kernels/src` that make the library.
        needs: modules that have to be loaded before it; of a shim, the device-libs that are linked into it.
        abi: how it calls those that it needs: "c", "c++" (in one library with it), or empty.
        toolchains: those that can build it.
        headers: folders or files of the source that its units include.
        include: those folders that are on the include path.
        compiled: files of the source that are compiled beside what generators write.
        only: regular expression -> processors: a generated unit whose name matches has device code for these alone;
            for none of them where it holds no kernels, as what chooses among them.
        flags: toolchain -> compiler flags for a device-lib, or for a shim; those of rocm are also container's.
        sonames: libraries besides the C library that its library may need.
        seconds, memory_mb: estimated CPU seconds and megabytes: of each generated unit, or of the library, all of whose
            files are compiled; libraries that share files take less together.
        max_size: bytes of the library, or what a device-lib may add to one.
    """

    name: str
    kind: Kind
    about: str
    targets: tuple[str, ...]
    host: tuple[str, ...]
    seconds: float
    memory_mb: int
    max_size: int
    source: str = ""
    fallback: str = ""
    needs: tuple[str, ...] = ()
    abi: str = ""
    toolchains: tuple[str, ...] = ("pypi", "rocm", "container")
    headers: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    compiled: tuple[str, ...] = ()
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sonames: tuple[str, ...] = ()
    ffi: tuple[FfiTarget, ...] = ()
    objects: tuple[Objects, ...] = ()
    units: tuple[Unit, ...] = ()
    generators: tuple[Generator, ...] = ()

    def supports(self, processor: str) -> bool:
        """Whether it has, or can have, code for that very processor."""
        return EVERY in self.targets or processor in self.targets

    def compiles(self, unit: str, processor: str) -> bool:
        """Whether a generated unit has device code for a processor."""
        limits = [targets for pattern, targets in self.only.items() if re.fullmatch(pattern, unit)]
        return self.supports(processor) and all(processor in targets for targets in limits)

    @property
    def library(self) -> str:
        """File name of its library."""
        return f"lib{self.name}.so"


@dataclass(frozen=True, kw_only=True, slots=True)
class Catalog:
    """All of `modules.toml`; modules come after those that they need."""

    sources: Mapping[str, Source]
    modules: Mapping[str, Module]

    def chosen(self, names: Sequence[str] | None, toolchain: str = "") -> tuple[Module, ...]:
        """The named modules and those that they need, or all; those that the toolchain cannot build only if named.

        Raises:
            RequestError: a name that is not there, or that the toolchain cannot build.
        """
        wanted = set(self.modules if names is None else names)
        if unknown := sorted(wanted - set(self.modules)):
            raise RequestError(
                f"There is no kernel module {', '.join(unknown)}.", hint=f"There are {', '.join(self.modules)}."
            )
        if toolchain:
            cannot = [name for name in wanted if toolchain not in self.modules[name].toolchains]
            if cannot and names is not None:
                raise RequestError(
                    f"The {toolchain} toolchain cannot build {', '.join(sorted(cannot))}.",
                    hint=f"Give --toolchain={self.modules[cannot[0]].toolchains[0]}.",
                )
            wanted -= set(cannot)
        for module in reversed(list(self.modules.values())):
            if module.name in wanted:
                wanted |= set(module.needs)
        return tuple(module for module in self.modules.values() if module.name in wanted)

    def support(self, module: Module, processor: str) -> Support:
        """What a target gets of a module."""
        if module.supports(processor):
            return Support.PORTABLE if module.kind is Kind.PORTABLE else Support.YES
        if module.fallback and self.modules[module.fallback].supports(processor):
            return Support.PORTABLE
        return Support.UNSUPPORTED


def processors(targets: Iterable[GfxTarget]) -> tuple[str, ...]:
    """The processors of targets, each once, in natural order.

    Kernels are compiled without settings of xnack and sramecc, as code that runs with either, so a target with a
    suffix is served by the code of its processor.
    """
    return tuple(dict.fromkeys(target.processor for target in table.in_order(targets)))


@functools.cache
def load_catalog() -> Catalog:
    """Read `modules.toml` beside this module; once per process.

    Raises:
        KernelError: it breaks the schema; every problem at once.
    """
    from kernels.schema import parse_catalog

    return parse_catalog(MODULES_TOML.read_text(encoding="utf-8"), str(MODULES_TOML))
