"""Built kernels, laid out as in the wheel, with FakeHip beside them."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernels.module_catalog import load_catalog
from kernels.tests.support.fake.calls import (
    LOAD,
    FakeMachine,
    Library,
    Record,
    Tensor,
)


@dataclass(frozen=True)
class Gpu:
    """One of FakeHip's devices."""

    ordinal: int
    name: str
    compute_units: int
    wave: int = 64

    @property
    def processor(self) -> str:
        """Processor without features."""
        return self.name.partition(":")[0]

    def __str__(self) -> str:
        return f"{self.processor}-{self.compute_units}"


GPUS = (
    Gpu(0, "gfx942:sramecc+:xnack-", 304),
    Gpu(1, "gfx950:sramecc+:xnack-", 256),
    Gpu(2, "gfx942:sramecc+:xnack-", 80),
    Gpu(3, "gfx950:sramecc+:xnack-", 32),
    Gpu(4, "gfx1100", 48, 32),
    Gpu(5, "gfx1103", 6, 32),
    Gpu(6, "gfx90a:sramecc+:xnack-", 104),
    Gpu(7, "gfx1201", 32, 32),
)


def find_device(processor: str, compute_units: int) -> int:
    """Return the ordinal of a device."""
    wanted = (processor, compute_units)
    return next(
        gpu.ordinal for gpu in GPUS if (gpu.processor, gpu.compute_units) == wanted
    )


class TreeLibrary(Library):
    """A library of the tree, whose first handler `call` calls."""

    def __init__(
        self,
        path: Path,
        root: Path,
        machine: FakeMachine,
        symbol: str,
    ) -> None:
        super().__init__(path, root)
        self.machine = machine
        self.symbol = symbol

    def call(
        self,
        args: Sequence[Tensor],
        results: Sequence[Tensor],
        attributes: Mapping[str, object] | None = None,
        *,
        device: int = 0,
        symbol: str = "",
    ) -> list[Record]:
        """Call a handler, and return FakeHip's records except those of loads."""
        self.machine.records()  # discard earlier records
        handler = symbol or self.symbol
        self.machine.call(
            self,
            handler,
            args,
            results,
            attributes,
            device=device,
        )
        return [record for record in self.machine.records() if record.what != LOAD]


@dataclass
class KernelTree:
    """Built kernels.

    Attributes:
        lib: folder of the libraries.
        hsa: folder of the code objects, as in the wheel.
        source: folder hsa of AITER's source.
        fake: folder of the stand-ins for a GPU.
        scratch: folder for copies.
        machine: fake GPUs.
    """

    lib: Path
    hsa: Path
    source: Path
    fake: Path
    scratch: Path
    machine: FakeMachine
    loaded: dict[str, TreeLibrary] = field(default_factory=dict)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def library(self, module: str) -> TreeLibrary:
        """Return a library, which is loaded once."""
        if module not in self.loaded:
            path = self.lib / f"lib{module}.so"
            self.loaded[module] = self._loaded(module, path, self.hsa)
        return self.loaded[module]

    def fresh(
        self,
        module: str,
        hsa: Path | None = None,
    ) -> TreeLibrary:
        """Return another copy of a library, which has neither loaded code nor queried a device."""
        copy = self.scratch / f"lib{module}-{next(self.numbers)}.so"
        shutil.copyfile(self.lib / f"lib{module}.so", copy)
        return self._loaded(module, copy, hsa or self.hsa)

    def _loaded(
        self,
        module: str,
        path: Path,
        hsa: Path,
    ) -> TreeLibrary:
        symbol = load_catalog().modules[module].ffi[0].symbol
        return TreeLibrary(path, hsa, self.machine, symbol)

    def copy_of_gemm(self, gfx: str) -> Path:
        """Return a copy of the hsa folder with gemm_bf16 for one target."""
        hsa = self.scratch / f"hsa-{next(self.numbers)}"
        place = f"{gfx}/gemm_bf16"
        shutil.copytree(self.hsa / place, hsa / place)
        return hsa


def start(fake: Path) -> FakeMachine:
    """Return FakeHip with its devices."""
    machine = FakeMachine(fake)
    for gpu in GPUS:
        machine.device(gpu.ordinal, gpu.name, gpu.compute_units, gpu.wave)
    return machine
