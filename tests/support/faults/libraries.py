"""Faults of a ROCm and of the libraries of wheels."""

from __future__ import annotations

import struct

from tests.support.faults import injections as make
from tests.support.faults import patches
from tests.support.faults.bench import XLA
from tests.support.faults.injections import HIP, HIPSPARSE
from tests.support.faults.model import HYBRID, PRNG, RNN, SOLVER, SPARSE, TRITON, Fault, caught
from tests.support.whole_code import Edit, dynamic_entry, dynamic_tag, put, section_bytes, segment
from wheelkit.elf import constants

_RENAMED = (b"\0hipGetErrorString\0", b"\0hipGetErrorStrinX\0")
_FFI_0_3, _FFI_0_9 = (struct.pack("<Q", minor << 32) for minor in (3, 9))
"""Major and minor version in the code of a handler."""
_STACK, _RELRO, _CODE = constants.PT_GNU_STACK, constants.PT_GNU_RELRO, constants.PF_R | constants.PF_X


def loading(name: str, how: str, edit: Edit, code: str, remedy: str) -> Fault:
    """Return a fault of the program headers or of the dynamic table of `_prng.so`."""
    inject = make.library("_prng.so", patches.edited(edit))
    return Fault(name=name, how=f"{how} in `_prng.so`", inject=inject, catches=caught("inspection", code, PRNG, remedy))


LOADING = (
    loading("executable stack", "PT_GNU_STACK is RWX", segment(_STACK, 4, "I", 7), "stack-executable", "noexecstack"),
    loading("stack not declared", "no PT_GNU_STACK", segment(_STACK, 0, "I", 0), "stack-executable", "noexecstack"),
    loading("code writable", "RWX segment of .text", segment(1, 4, "I", 7, flags=_CODE), "code-writable", "-fPIC"),
    loading("text relocations", "DT_TEXTREL added", dynamic_entry(constants.DT_TEXTREL, 0), "code-writable", "-fPIC"),
    loading(
        "exceptions that end the process", "no PT_GNU_EH_FRAME", segment(constants.PT_GNU_EH_FRAME, 0, "I", 0),
        "unwind-table-wrong", "eh-frame-hdr",
    ),
    loading(
        "exceptions without frames", ".eh_frame of zeros", section_bytes(".eh_frame", lambda old: bytes(len(old))),
        "unwind-table-wrong", "eh-frame-hdr",
    ),
    loading("no RELRO", "no PT_GNU_RELRO", segment(_RELRO, 0, "I", 0), "relro-missing", "relro"),
    loading("segment misaligned", "p_align is 16", segment(1, 48, "Q", 16), "segment-unmappable", "Link it again"),
    loading(
        "segment at another offset", "p_align is 64 kB", segment(1, 48, "Q", 1 << 16, flags=_CODE),
        "segment-unmappable", "Link it again",
    ),
    loading(
        "library that cannot be opened", "DF_1_NOOPEN added", dynamic_entry(constants.DT_FLAGS_1, 0x40),
        "load-flags-wrong", "Link without",
    ),
    loading(
        "static memory for threads", "DF_STATIC_TLS added", dynamic_entry(constants.DT_FLAGS, constants.DF_STATIC_TLS),
        "load-flags-wrong", "Link without",
    ),
    loading(
        "search path that users cannot override", "DT_RPATH instead of DT_RUNPATH",
        dynamic_tag(constants.DT_RUNPATH, constants.DT_RPATH), "rpath-used", "enable-new-dtags",
    ),
    loading(
        "lost page of code", "4 kB of zeros in .text",
        section_bytes(".text", lambda old: old[:4096] + bytes(4096) + old[8192:]), "code-lost", "part of the file",
    ),
    loading(
        "lost block of frames", "256 bytes of zeros in .eh_frame",
        section_bytes(".eh_frame", lambda old: old[:2048] + bytes(256) + old[2304:]), "code-lost", "part of the file",
    ),
    loading(
        "symbols of another library first", "DT_AUXILIARY added", dynamic_entry(constants.DT_AUXILIARY, 1),
        "load-flags-wrong", "Link without",
    ),
)  # fmt: skip

_ZMM, _YMM = b"\x62\xf1\xfd\x48\x6f\x07", b"\xc4\xe2\x7d\x58\x07"
"""vmovdqa64 zmm0, [rdi], and vpbroadcastd ymm0, [rdi]."""

FAULTS = (
    Fault(
        name="compiled for newer processors",
        how="an instruction of AVX-512 in a function of `_prng.so`",
        inject=make.library("_prng.so", patches.edited(patches.first_function(_ZMM))),
        catches=caught("inspection", "isa-too-new", PRNG, "-march=native"),
    ),
    Fault(
        name="one library for newer processors",
        how="an instruction of AVX2 in a function of `_prng.so`, unlike the other libraries",
        inject=make.library("_prng.so", patches.edited(patches.first_function(_YMM))),
        catches=caught("inspection", "isa-too-new", PRNG, "-march=native"),
    ),
    Fault(
        name="damaged machine code of the host",
        how="64 bytes of the first function of `_prng.so` are 0x06, no instruction",
        inject=make.library("_prng.so", patches.edited(patches.first_function(b"\x06" * 64))),
        catches=caught("inspection", "code-lost", PRNG, "part of the file"),
    ),
    Fault(
        name="lost constants",
        how="1 kB of 255 in .rodata of `_sparse.so`",
        inject=make.library(
            "_sparse.so",
            patches.edited(section_bytes(".rodata", lambda old: old[:4096] + b"\xff" * 1024 + old[5120:])),
        ),
        catches=caught("inspection", "code-lost", SPARSE, "part of the file"),
    ),
    Fault(
        name="pointer into a function",
        how="the first relocated pointer to machine code of `_sparse.so` plus 1",
        inject=make.library("_sparse.so", patches.edited(patches.stray_pointer)),
        catches=caught("inspection", "relocation-wrong", SPARSE, "Link it again"),
    ),
    Fault(
        name="linked with -ffast-math",
        how="start-up code that flushes denormals in place of the last constructor of `_sparse.so`",
        inject=make.library("_sparse.so", patches.edited(patches.fast_math)),
        catches=caught("inspection", "load-flags-wrong", SPARSE, "into the process"),
    ),
    Fault(
        name="library that measures itself",
        how="the name of a .gcda file in .rodata of `_sparse.so`",
        inject=make.library(
            "_sparse.so",
            patches.edited(section_bytes(".rodata", lambda old: old[:4096] + b"/tmp/x.gcda\0" + old[4108:])),
        ),
        catches=caught("inspection", "instrumented", SPARSE, "--coverage"),
    ),
    Fault(
        name="frames out of order",
        how="two rows of .eh_frame_hdr of `_sparse.so` exchanged",
        inject=make.library(
            "_sparse.so",
            patches.edited(section_bytes(".eh_frame_hdr", lambda old: old[:52] + old[60:68] + old[52:60] + old[68:])),
        ),
        catches=caught("inspection", "unwind-table-wrong", SPARSE, "Link it again"),
    ),
    Fault(
        name="file of another type",
        how="ET_REL in the header of `_sparse.so`",
        inject=make.library("_sparse.so", patches.edited(put(16, "H", 1))),
        catches=caught("inspection", "layout-wrong", SPARSE, "Link it again"),
    ),
    Fault(
        name="symbol version that does not exist",
        how="99 as the version of a symbol of `_sparse.so`",
        inject=make.library(
            "_sparse.so",
            patches.edited(section_bytes(".gnu.version", lambda old: old[:2] + b"\x63\0" + old[4:])),
        ),
        catches=caught("inspection", "layout-wrong", SPARSE, "Link it again"),
    ),
    Fault(
        name="rows of another size",
        how="DT_RELAENT of `_sparse.so` is 16",
        inject=make.library("_sparse.so", patches.dynamic(constants.DT_RELAENT, 16)),
        catches=caught("inspection", "dynamic-table-wrong", SPARSE, "Link it again"),
    ),
    Fault(
        name="hidden module function",
        how="the visibility of `PyInit__sparse` in `_sparse.so`",
        inject=make.library("_sparse.so", patches.edited(patches.hidden_init)),
        catches=caught("inspection", "init-name-wrong", SPARSE, "Name the file"),
    ),
    Fault(
        name="module of another nanobind",
        how="v18 in place of v19 in the ABI tag of nanobind in `_triton.so`",
        inject=make.library("_triton.so", patches.word(b"\0v19_dev1_", b"\0v18_dev1_", ".rodata")),
        catches=caught("inspection", "bindings-differ", TRITON, "Build all modules again"),
    ),
    Fault(
        name="module of another Python",
        how="`_prng.so` of the wheel for Python 3.11 in the wheel for 3.12",
        inject=make.of_another_python("_prng.so"),
        catches=caught("inspection", "bindings-differ", PRNG, "Build all modules again"),
    ),
    # Exports of a ROCm.
    Fault(
        name="ROCm lacks a symbol",
        how=f"`hipGetErrorString` removed from {HIP} in the manifest",
        inject=make.rocm(HIP, make.without_symbol("hipGetErrorString")),
        catches=caught("abi", "symbol-missing", HYBRID, "Build the library against ROCm")
        + caught("load", "load-failed", HYBRID, "Build or adopt the wheel with the --rocm-version"),
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
        catches=caught("abi", "needed-unresolved", SPARSE, "Choose --rocm-version")
        + caught("load", "load-failed", SPARSE, "Build or adopt the wheel with the --rocm-version"),
    ),
    Fault(
        name="symbol that the ROCm lacks",
        how="`hipGetErrorString` renamed in `_hybrid.so`, in a set without a manifest of its ROCm",
        inject=make.without_manifest(make.library("_hybrid.so", patches.word(*_RENAMED, ".dynstr"))),
        catches=caught("abi", "symbol-missing", HYBRID, "Build the library against ROCm"),
    ),
    Fault(
        name="weak function that the ROCm lacks",
        how="`hipGetErrorString` renamed and weak in `_hybrid.so`, so that its callers jump to address 0",
        inject=make.without_manifest(make.library("_hybrid.so", patches.edited(patches.weak(*_RENAMED)))),
        catches=caught("abi", "symbol-missing", HYBRID, "Build the library against ROCm"),
    ),
    Fault(
        name="exports of the ROCm unknown",
        how="a set for ROCm 7.3.0 without a manifest",
        inject=make.without_manifest(make.recorded(rocm_version="7.3.0")),
        catches=caught("abi", "rocm-unknown", "none is shipped for its ROCm", "rocm manifest"),
        wheel="",
    ),
    # Libraries.
    Fault(
        name="RUNPATH of the build machine",
        how="/home/builder/… prepended to the RUNPATH of `_sparse.so`",
        inject=make.library("_sparse.so", patches.runpath),
        catches=caught("inspection abi", "runpath-build-leftover", SPARSE, "Rewrite RUNPATH"),
    ),
    Fault(
        name="RUNPATH above site-packages",
        how="$ORIGIN/../../../../../../tmp/x prepended to the RUNPATH of `_sparse.so`",
        inject=make.library("_sparse.so", patches.outside_runpath),
        catches=caught("inspection abi", "runpath-outside", SPARSE, "Remove the entry"),
    ),
    *LOADING,
    Fault(
        name="crash at exit",
        how="DT_FINI_ARRAYSZ of `_sparse.so` is 1024",
        inject=make.library("_sparse.so", patches.dynamic(constants.DT_FINI_ARRAYSZ, 1024)),
        catches=caught("inspection", "dynamic-table-wrong", SPARSE, "Link it again"),
    ),
    Fault(
        name="relocations left out",
        how="DT_RELASZ of `_sparse.so` is 24",
        inject=make.library("_sparse.so", patches.dynamic(constants.DT_RELASZ, 24)),
        catches=caught("inspection", "dynamic-table-wrong", SPARSE, "Link it again"),
    ),
    Fault(
        name="function in place of another",
        how="calls of `hipsolverSgetrf` in `_solver.so` bound to `hipsolverDgetrf`",
        inject=make.library("_solver.so", patches.edited(patches.rebound("hipsolverSgetrf", "hipsolverDgetrf"))),
        catches=caught("inspection", "dynamic-table-wrong", SOLVER, "Link it again"),
    ),
    Fault(
        name="two functions exchanged",
        how="calls of `hipsolverSgetrf` and `hipsolverDgetrf` in `_solver.so` reach each other",
        inject=make.library("_solver.so", patches.edited(patches.exchanged("hipsolverSgetrf", "hipsolverDgetrf"))),
        catches=caught("inspection", "relocation-wrong", SOLVER, "Link it again"),
        heavy=True,
    ),
    Fault(
        name="exported function that is not found",
        how="`PyInit__solver` renamed `PyInit__solvez` in the names, but not in the hashes of `_solver.so`",
        inject=make.library("_solver.so", patches.word(b"PyInit__solver\0", b"PyInit__solvez\0", ".dynstr")),
        catches=caught("inspection", "layout-wrong", SOLVER, "Link it again"),
        heavy=True,
    ),
    Fault(
        name="soname of HIP",
        how="libamdhip64.so.7 as the soname of `_prng.so`",
        inject=make.library("_prng.so", patches.edited(patches.soname(b"libamdhip64.so.7"))),
        catches=caught("abi", "soname-taken", PRNG, "another soname"),
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
        name="compiled with another ROCm",
        how="the clang of ROCm 7.1.0 instead of 7.2.0 in `.comment` of `_prng.so`",
        inject=make.library("_prng.so", patches.word(b"roc-7.2.0", b"roc-7.1.0", ".comment")),
        catches=caught("inspection", "wheels-json-untrue", PRNG, "Build and stage the set again"),
    ),
    Fault(
        name="unregistered FFI handler",
        how="`hipsolver_getrf_ffi` renamed in `_solver.so`",
        inject=make.library("_solver.so", patches.word(b"hipsolver_getrf_ffi\0", b"hipsolver_getrf_xxx\0", ".rodata")),
        catches=caught("load", "golden-differs", SOLVER, "--update-golden"),
    ),
    Fault(
        name="exchanged FFI handlers",
        how="`hipsolver_getrf_ffi` and `hipsolver_potrf_ffi` exchanged in `_solver.so`",
        inject=make.library(
            "_solver.so", patches.words_exchanged(b"hipsolver_getrf_ffi\0", b"hipsolver_potrf_ffi\0", ".rodata")
        ),
        catches=caught(
            "load",
            "golden-differs",
            "registers otherwise hipsolver_getrf_ffi (execute 1 -> 2 (lower), API 0.3, not",
            "--update-golden",
        ),
    ),
    Fault(
        name="FFI handler of another API",
        how="the handler in `_prng.so` compiled with version 0.9 of XLA's FFI API instead of 0.3",
        inject=make.library("_prng.so", patches.word(b"\x48\xb9" + _FFI_0_3, b"\x48\xb9" + _FFI_0_9, ".text")),
        catches=caught(
            "load", "golden-differs", "(execute 4 -> 2, API 0.9, not execute 4 -> 2, API 0.3)", "--update-golden"
        ),
    ),
    Fault(
        name="wrong Python tag",
        how="the modules of Python 3.11 in the wheel for 3.12",
        inject=make.of_another_python(),
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
