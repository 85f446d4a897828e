"""Faults of device code."""

from __future__ import annotations

from tests.support.faults import injections as make
from tests.support.faults import patches
from tests.support.faults.code_objects import CODE_FAULTS, CodeFault
from tests.support.faults.model import LINALG, PRNG, PROGRAM, Fault, caught
from tests.support.whole_code import kernel_field, section_bytes
from wheelkit.elf import constants

_PIVOTS = b"_ZN3jax3hip12_GLOBAL__N_127LuPivotsToPermutationKernelEPKiPilii"
_CHOLESKY = b"_ZN3jax3hip12_GLOBAL__N_120CholeskyUpdateKernelIfEEvPT_S4_i"


def code_fault(fault: CodeFault) -> Fault:
    """Return a row of the matrix for a fault of gfx942's code object in `_prng.so`."""

    def change(held: dict[str, bytes]) -> None:
        code = bytearray(held["gfx942"])
        fault.edit(code)
        held["gfx942"] = bytes(code)

    return Fault(
        name=fault.name,
        how=f"gfx942's code object in `_prng.so`: {fault.how}",
        inject=make.library("_prng.so", patches.device_code(change)),
        catches=caught("coverage", fault.code, PRNG, "Build"),
        heavy=True,
    )


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
        catches=caught("coverage", "code-object-damaged", PRNG, "Build or download it again"),
    ),
    Fault(
        name="wrong gfx in e_flags",
        how="gfx950's code object in `_prng.so` marked as gfx942",
        inject=make.library("_prng.so", patches.device_code(patches.other_processor)),
        catches=caught("coverage", "code-object-wrong", PRNG, "Build it again"),
    ),
    Fault(
        name="code of another generation",
        how="gfx950's code object of `_linalg.so` in place of gfx942's, with its name in header and metadata",
        inject=make.library("_linalg.so", patches.device_code(patches.next_generation)),
        catches=caught("coverage", "code-object-wrong", LINALG, "Build it again"),
        heavy=True,
    ),
    *map(code_fault, CODE_FAULTS),
    code_fault(
        CodeFault(
            "work-groups of another size",
            "64 work-items, unlike gfx950's kernel",
            kernel_field(max_flat_workgroup_size=64),
            "kernel-metadata-wrong",
        )
    ),
    code_fault(
        CodeFault(
            "code of an earlier build",
            "roc-7.1.1 in .comment, unlike gfx950's code object",
            section_bytes(".comment", lambda old: old.replace(b"roc-7.2.0", b"roc-7.1.1")),
            "compilers-differ",
        )
    ),
    Fault(
        name="code of another offload kind",
        how="gfx942's entry in a bundle of `_prng.so` named openmp instead of hipv4",
        inject=make.library("_prng.so", patches.other_kind),
        catches=caught("inspection coverage", "bundle-entry-unknown", PRNG, "-x hip"),
    ),
    Fault(
        name="no constructor runs",
        how="DT_INIT_ARRAYSZ of `_prng.so` is 0",
        inject=make.library("_prng.so", patches.dynamic(constants.DT_INIT_ARRAYSZ, 0)),
        catches=caught("coverage load", "registration-missing", PRNG, "Link it again"),
    ),
    Fault(
        name="wrapper with another magic",
        how="HIPX instead of HIPF in `_prng.so`",
        inject=make.library("_prng.so", patches.wrapper(0, 0x58495046)),
        catches=caught("coverage", "registration-missing", PRNG, "Link it again"),
    ),
    Fault(
        name="wrapper of another version",
        how="2 in `_prng.so`",
        inject=make.library("_prng.so", patches.wrapper(4, 2)),
        catches=caught("coverage", "registration-missing", PRNG, "Link it again"),
    ),
    Fault(
        name="two kernels exchanged",
        how="two kernels of `_linalg.so` with 5 and 3 arguments registered under each other's names",
        inject=make.library("_linalg.so", patches.edited(patches.exchanged_names(_PIVOTS, _CHOLESKY))),
        catches=caught("coverage", "registration-wrong", LINALG, "Link it again"),
        heavy=True,
    ),
    Fault(
        name="kernel missing",
        how="gfx942's kernels in `_prng.so` renamed, unlike the registered ones",
        inject=make.library("_prng.so", patches.device_code(patches.other_kernel)),
        catches=caught("coverage", "kernel-missing", PRNG, "Build the library again for gfx942"),
    ),
    Fault(
        name="registered variable renamed",
        how="`kInfinity` renamed in the host code of XLA's plugin, unlike the device code",
        inject=make.xla(patches.word(b"9kInfinityI12hip_bfloat16EE\0", b"9kInfinitYI12hip_bfloat16EE\0", ".rodata")),
        catches=caught("load", "variable-missing", "kInfinitY", "Build it again from one source"),
        wheel="pjrt",
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
