"""Faults of device code."""

from __future__ import annotations

from tests.support.faults import injections as make
from tests.support.faults import patches
from tests.support.faults.model import PRNG, PROGRAM, Fault, caught

FAULTS = (
    Fault(
        name="damaged fat binary",
        how="one bit of a compressed bundle of `_prng.so` flipped",
        inject=make.library("_prng.so", patches.flipped),
        catches=caught("coverage", "bundle-damaged", PRNG, "Build or download it again"),
    ),
    Fault(
        name="damaged code object with a right checksum",
        how="the second half of gfx942's code in `_prng.so` filled with zeros, packed again",
        inject=make.library("_prng.so", patches.device_code(patches.cut_code)),
        catches=caught("coverage", "code-object-wrong", PRNG, "Build it again"),
    ),
    Fault(
        name="wrong gfx in e_flags",
        how="gfx950's code object in `_prng.so` marked as gfx942",
        inject=make.library("_prng.so", patches.device_code(patches.other_processor)),
        catches=caught("coverage", "code-object-wrong", PRNG, "Build it again"),
    ),
    Fault(
        name="kernel missing",
        how="gfx942's kernels in `_prng.so` renamed, unlike the registered ones",
        inject=make.library("_prng.so", patches.device_code(patches.other_kernel)),
        catches=caught("coverage", "kernel-missing", PRNG, "Build the library again for gfx942"),
    ),
    Fault(
        name="target dropped",
        how="`_prng.so` slimmed to gfx950 in a set for gfx942 and gfx950",
        inject=make.only_gfx950,
        catches=caught("inspection coverage", "target-missing", PRNG, "Build with this target"),
    ),
    Fault(
        name="target extra",
        how="`_prng.so` with its code for all 27 targets",
        inject=make.not_slimmed,
        catches=caught("coverage", "target-extra", PRNG, "Slim the wheel"),
    ),
    Fault(
        name="library with device code missing",
        how="`_prng.so` removed",
        inject=make.without("plugin", PRNG),
        catches=caught("coverage", "target-missing", PRNG, "Build with this target"),
    ),
    Fault(
        name="damaged device bitcode",
        how="64 bytes of every 4 kB of the device libraries inside XLA's plugin overwritten",
        inject=make.xla(patches.bitcode),
        catches=caught("compile", "compile-failed", f"gfx942 {PROGRAM}", f"--program {PROGRAM}"),
        wheel="",
    ),
)

BEYOND = (
    Fault(
        name="damaged machine code with a right checksum",
        how="one bit in gfx942's instructions in `_prng.so` flipped, packed again",
        inject=make.library("_prng.so", patches.device_code(patches.other_instructions)),
        catches=(),
    ),
)
"""Faults that only a run on a GPU detects."""
