"""Faults of a ROCm and of the libraries of wheels."""

from __future__ import annotations

from tests.support.faults import injections as make
from tests.support.faults import patches
from tests.support.faults.bench import XLA
from tests.support.faults.injections import HIP, HIPSPARSE
from tests.support.faults.model import HYBRID, PRNG, RNN, SOLVER, SPARSE, TRITON, Fault, caught

FAULTS = (
    # Exports of a ROCm.
    Fault(
        name="ROCm lacks a symbol",
        how=f"`hipGetErrorString` removed from {HIP} in the manifest",
        inject=make.rocm(HIP, make.without_symbol("hipGetErrorString")),
        catches=caught("abi", "symbol-missing", HYBRID, "Build the library against ROCm")
        + caught("load", "load-failed", HYBRID, "Build the wheel with the ROCm that it will run with"),
    ),
    Fault(
        name="ROCm lacks a symbol version",
        how=f"`hip_6.0` of {HIP} renamed `hip_9.9` in the manifest",
        inject=make.rocm(HIP, make.without_version("hip_6.0")),
        catches=caught("abi", "symbol-version-missing", TRITON, "Build the library against ROCm"),
    ),
    Fault(
        name="a library of ROCm with another soname",
        how=f"{HIPSPARSE} is libhipsparse.so.5 in the manifest, and in the stubs of it",
        inject=make.rocm(HIPSPARSE, make.renamed("libhipsparse.so.5")),
        catches=caught("abi", "needed-unresolved", SPARSE, "Build against this ROCm")
        + caught("load", "load-failed", SPARSE, "Build the wheel with the ROCm that it will run with"),
    ),
    # Libraries.
    Fault(
        name="RUNPATH of the build machine",
        how="/home/builder/… prepended to the RUNPATH of `_sparse.so`",
        inject=make.library("_sparse.so", patches.runpath),
        catches=caught("inspection abi", "runpath-build-leftover", SPARSE, "Rewrite RUNPATH"),
    ),
    Fault(
        name="leaked NEEDED",
        how="libLLVM-19.so added to the NEEDED of `_prng.so`",
        inject=make.library("_prng.so", patches.leaked_needed("libLLVM-19.so")),
        catches=caught("abi", "needed-unresolved", PRNG, "link the needed library statically"),
    ),
    Fault(
        name="NEEDED with a path",
        how="/build/out/libhip.so added to the NEEDED of `_prng.so`",
        inject=make.library("_prng.so", patches.leaked_needed("/build/out/libhip.so")),
        catches=caught("abi", "needed-build-path", PRNG, "not by path"),
    ),
    Fault(
        name="newer glibc than the tag allows",
        how="GLIBC_2.17 renamed GLIBC_2.38 in `_sparse.so`",
        inject=make.library("_sparse.so", patches.newer_glibc),
        catches=caught("inspection abi", "symbol-version-too-new", SPARSE, "Build with the toolchain of"),
    ),
    Fault(
        name="truncated library",
        how="the second half of `_rnn.so` cut off",
        inject=make.replaced("_rnn.so", make.half),
        catches=caught("inspection abi", "elf-unreadable", RNN, "Build it again"),
    ),
    Fault(
        name="stripped .dynsym",
        how="the dynamic symbol table of `_rnn.so` filled with zeros",
        inject=make.library("_rnn.so", patches.no_symbols),
        catches=caught("load", "look-died", RNN, "Check that the module was built for this Python"),
    ),
    Fault(
        name="no entry for JAX",
        how="`GetPjrtApi` of XLA's plugin renamed",
        inject=make.xla(patches.word(b"\0GetPjrtApi\0", b"\0GetPjrtApX\0", ".dynstr")),
        catches=caught("inspection", "pjrt-api-missing", "", "Export GetPjrtApi"),
        wheel="pjrt",
    ),
    Fault(
        name="extension module missing",
        how="`_rnn.so` removed",
        inject=make.without("plugin", RNN),
        catches=caught("load", "golden-differs", "_rnn.so", "--update-golden"),
        wheel="",
    ),
    Fault(
        name="unregistered FFI handler",
        how="`hipsolver_getrf_ffi` renamed in `_solver.so`",
        inject=make.library("_solver.so", patches.word(b"hipsolver_getrf_ffi\0", b"hipsolver_getrf_xxx\0", ".rodata")),
        catches=caught("load", "golden-differs", SOLVER, "--update-golden"),
    ),
    Fault(
        name="wrong Python tag",
        how="the modules of Python 3.11 in the wheel for 3.12",
        inject=make.of_another_python,
        catches=caught("load", "import-failed", RNN, "Build the module for this Python"),
    ),
    Fault(
        name="jaxlib newer than the plugin",
        how="jax and jaxlib 0.12.0 with plugin and pjrt 0.10.2",
        inject=make.newer_jaxlib,
        catches=caught(
            "inspection",
            "set-pin-unmet",
            "cp312-manylinux_2_28_x86_64.whl: the wheel requires jaxlib",
            "Put wheels that fit",
        )
        + caught("load", "pjrt-api-skew", f".whl: {XLA} has PJRT API", "Add the jaxlib that the plugin was built with"),
        wheel="",
    ),
    Fault(
        name="jaxlib older than the plugin",
        how="jax and jaxlib 0.10.2 with the published plugin and pjrt 0.12.0",
        inject=make.older_jaxlib,
        catches=caught(
            "load", "pjrt-api-skew", f".whl: {XLA} has PJRT API", "Add the jaxlib that the plugin was built with"
        ),
        wheel="",
    ),
)
