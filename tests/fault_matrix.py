"""The fault matrix: ways to break the published wheels, and which gate has to say what about each.

`python -m tests.fault_matrix` writes it into the README of the gates.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests import fault_injections as make
from tests.broken_set import XLA
from tests.fault_injections import HIP, PACKAGE, SPARSE, Inject

README = Path(__file__).parents[1] / "promotion" / "gates" / "README.md"
BEGIN, END = "<!-- fault matrix: begin -->", "<!-- fault matrix: end -->"
PROGRAM = "numpy.elementwise"
"""What the compile gate compiles: it uses the device libraries."""


@dataclass(frozen=True, kw_only=True)
class Catch:
    """What a gate has to find.

    Attributes:
        code: of the finding.
        names: what the message has to name besides the wheel: the file, or the program and its target.
        remedy: words of the remedy.
        warns: the gate warns but passes.
    """

    gate: str
    code: str
    names: str
    remedy: str
    warns: bool = False


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One way to break a set.

    Attributes:
        how: how it is made; continues the sentence "the wheel is broken by …".
        inject: makes the broken set.
        wheel: kind of the wheel that each message has to name; empty where no wheel is to blame.
    """

    name: str
    how: str
    inject: Inject
    catches: tuple[Catch, ...]
    wheel: str = "plugin"


def _inspection(code: str, names: str, remedy: str, *, warns: bool = False) -> Catch:
    return Catch(gate="inspection", code=code, names=names, remedy=remedy, warns=warns)


def _abi(code: str, names: str, remedy: str) -> Catch:
    return Catch(gate="abi", code=code, names=names, remedy=remedy)


def _load(code: str, names: str, remedy: str) -> Catch:
    return Catch(gate="load", code=code, names=names, remedy=remedy)


def _coverage(code: str, names: str, remedy: str) -> Catch:
    return Catch(gate="coverage", code=code, names=names, remedy=remedy)


_HYBRID, _PRNG, _RNN, _SPARSE, _SOLVER, _TRITON = (
    f"{PACKAGE}/_{name}.so" for name in ("hybrid", "prng", "rnn", "sparse", "solver", "triton")
)
_METADATA = "{info}/METADATA"

FAULTS = (
    # What a ROCm exports.
    Fault(
        name="a symbol is gone from ROCm",
        how=f"`hipGetErrorString` left out of {HIP} in the manifest",
        inject=make.rocm(HIP, make.without_symbol("hipGetErrorString")),
        catches=(
            _abi("symbol-missing", _HYBRID, "Build it against ROCm"),
            _load("load-failed", _HYBRID, "Build the wheel with the ROCm that it shall run with"),
        ),
    ),
    Fault(
        name="a symbol version is gone from ROCm",
        how=f"`hip_6.0` of {HIP} is called `hip_9.9` in the manifest",
        inject=make.rocm(HIP, make.without_version("hip_6.0")),
        catches=(_abi("symbol-version-missing", _TRITON, "Build it against ROCm"),),
    ),
    Fault(
        name="a library of ROCm has a new soname",
        how=f"{SPARSE} is libhipsparse.so.5 in the manifest, and in the stand-ins made of it",
        inject=make.rocm(SPARSE, make.renamed("libhipsparse.so.5")),
        catches=(
            _abi("needed-unresolved", _SPARSE, "Build it against that ROCm"),
            _load("load-failed", _SPARSE, "Build the wheel with the ROCm that it shall run with"),
        ),
    ),
    # Libraries.
    Fault(
        name="RUNPATH of the build machine",
        how="/home/builder/… put in front of the RUNPATH of `_sparse.so`",
        inject=make.library("_sparse.so", make.runpath),
        catches=(
            _inspection("runpath-build-leftover", _SPARSE, "Rewrite RUNPATH"),
            _abi("runpath-build-leftover", _SPARSE, "Rewrite RUNPATH"),
        ),
    ),
    Fault(
        name="leaked NEEDED",
        how="libLLVM-19.so added to the NEEDED of `_prng.so`",
        inject=make.library("_prng.so", make.leaked_needed("libLLVM-19.so")),
        catches=(_abi("needed-unresolved", _PRNG, "link the library statically"),),
    ),
    Fault(
        name="NEEDED with a path",
        how="/build/out/libhip.so added to the NEEDED of `_prng.so`",
        inject=make.library("_prng.so", make.leaked_needed("/build/out/libhip.so")),
        catches=(_abi("needed-build-path", _PRNG, "not with the path of its file"),),
    ),
    Fault(
        name="newer glibc than the tag says",
        how="GLIBC_2.17 renamed GLIBC_2.38 in `_sparse.so`",
        inject=make.library("_sparse.so", make.newer_glibc),
        catches=(
            _inspection("symbol-version-too-new", _SPARSE, "Build with the toolchain of"),
            _abi("symbol-version-too-new", _SPARSE, "Build with the toolchain of"),
        ),
    ),
    Fault(
        name="truncated library",
        how="the second half of `_rnn.so` cut off",
        inject=make.replaced("_rnn.so", make.half),
        catches=(
            _inspection("elf-unreadable", _RNN, "Build it again"),
            _abi("elf-unreadable", _RNN, "Build it again"),
        ),
    ),
    Fault(
        name="stripped .dynsym",
        how="the dynamic symbol table of `_rnn.so` filled with zeros",
        inject=make.library("_rnn.so", make.no_symbols),
        catches=(_load("look-died", _RNN, "Find out what does that to a process"),),
    ),
    Fault(
        name="no entry for JAX",
        how="`GetPjrtApi` of XLA's plugin has another name",
        inject=make.xla(make.word(b"\0GetPjrtApi\0", b"\0GetPjrtApX\0", ".dynstr")),
        catches=(_inspection("pjrt-api-missing", "", "Export GetPjrtApi"),),
        wheel="pjrt",
    ),
    Fault(
        name="extension module missing",
        how="`_rnn.so` left out",
        inject=make.without("plugin", _RNN),
        catches=(_load("golden-differs", "_rnn.so", "--update-golden"),),
        wheel="",
    ),
    Fault(
        name="unregistered FFI handler",
        how="`hipsolver_getrf_ffi` has another name in `_solver.so`",
        inject=make.library("_solver.so", make.word(b"hipsolver_getrf_ffi\0", b"hipsolver_getrf_xxx\0", ".rodata")),
        catches=(_load("golden-differs", _SOLVER, "--update-golden"),),
    ),
    Fault(
        name="wrong Python tag",
        how="the modules of Python 3.11 in the wheel for 3.12",
        inject=make.of_another_python,
        catches=(_load("import-failed", _RNN, "Build the module for this Python"),),
    ),
    Fault(
        name="jaxlib newer than the plugin",
        how="jax and jaxlib 0.12.0 with plugin and pjrt 0.10.2",
        inject=make.newer_jaxlib,
        catches=(
            _inspection("set-pin-unmet", "cp312-manylinux_2_28_x86_64.whl: requires jaxlib", "Put wheels that fit"),
            _load("pjrt-api-skew", f".whl: {XLA} has PJRT API", "Put the jaxlib into the set"),
        ),
        wheel="",
    ),
    Fault(
        name="jaxlib older than the plugin",
        how="jax and jaxlib 0.10.2 with the published plugin and pjrt 0.12.0",
        inject=make.older_jaxlib,
        catches=(_load("pjrt-api-skew", f".whl: {XLA} has PJRT API", "Put the jaxlib into the set"),),
        wheel="",
    ),
    # Device code.
    Fault(
        name="damaged fat binary",
        how="one bit of a compressed bundle of `_prng.so` flipped",
        inject=make.library("_prng.so", make.flipped),
        catches=(_coverage("bundle-damaged", _PRNG, "Build or download it again"),),
    ),
    Fault(
        name="damaged code object with a right checksum",
        how="the second half of gfx942's code in `_prng.so` filled with zeros, packed again",
        inject=make.library("_prng.so", make.device_code(make.cut_code)),
        catches=(_coverage("code-object-wrong", _PRNG, "Build it again"),),
    ),
    Fault(
        name="wrong gfx in e_flags",
        how="gfx950's code object in `_prng.so` says that it is for gfx942",
        inject=make.library("_prng.so", make.device_code(make.other_processor)),
        catches=(_coverage("code-object-wrong", _PRNG, "Build it again"),),
    ),
    Fault(
        name="kernel missing",
        how="gfx942's kernels in `_prng.so` have other names than the registered ones",
        inject=make.library("_prng.so", make.device_code(make.other_kernel)),
        catches=(_coverage("kernel-missing", _PRNG, "Build it again for gfx942"),),
    ),
    Fault(
        name="target dropped",
        how="`_prng.so` slimmed to gfx950 in a set for gfx942 and gfx950",
        inject=make.only_gfx950,
        catches=(
            _inspection("target-missing", _PRNG, "Build with this target"),
            _coverage("target-missing", _PRNG, "Build with this target"),
        ),
    ),
    Fault(
        name="target extra",
        how="`_prng.so` with its code for all 27 targets",
        inject=make.not_slimmed,
        catches=(_coverage("target-extra", _PRNG, "Slim the wheel"),),
    ),
    Fault(
        name="library with device code missing",
        how="`_prng.so` left out",
        inject=make.without("plugin", _PRNG),
        catches=(_coverage("target-missing", _PRNG, "Build with this target"),),
    ),
    Fault(
        name="damaged device bitcode",
        how="64 bytes of every 4 kB of the device libraries inside XLA's plugin overwritten",
        inject=make.xla(make.bitcode),
        catches=(Catch(gate="compile", code="compile-", names=f"gfx942 {PROGRAM}", remedy=f"--program {PROGRAM}"),),
        wheel="",
    ),
    # Files and metadata.
    Fault(
        name="missing version.py",
        how="left out of the plugin",
        inject=make.without("plugin", f"{PACKAGE}/version.py"),
        catches=(_load("package-broken", f"{PACKAGE}/version.py", "Build the wheel again"),),
    ),
    Fault(
        name="entry point gone",
        how="entry_points.txt left out of pjrt",
        inject=make.without("pjrt", "{info}/entry_points.txt"),
        catches=(
            _inspection("entry-point-missing", "jax_plugins", "Add a `jax_plugins` entry point"),
            _load("entry-point-missing", "entry_points.txt", "Add it to the group jax_plugins"),
        ),
        wheel="pjrt",
    ),
    Fault(
        name="entry point that leads nowhere",
        how="pjrt's entry point names jax_plugins.xla_rocm9",
        inject=make.text("pjrt", "{info}/entry_points.txt", "jax_plugins.xla_rocm7", "jax_plugins.xla_rocm9"),
        catches=(_inspection("entry-point-broken", "jax_plugins.xla_rocm9", "Point it at a module"),),
        wheel="pjrt",
    ),
    Fault(
        name="version.py of another version",
        how="0.10.1 in the plugin's version.py",
        inject=make.text("plugin", f"{PACKAGE}/version.py", "0.10.2", "0.10.1"),
        catches=(_inspection("version-stale", f"{PACKAGE}/version.py", "Rewrite _release_version"),),
    ),
    Fault(
        name="wrong pin",
        how="the plugin requires pjrt ==0.10.1",
        inject=make.text(
            "plugin", _METADATA, "jax-rocm7-pjrt==0.10.2+rocm7.2.0.gfx942.gfx950", "jax-rocm7-pjrt==0.10.1"
        ),
        catches=(_inspection("pin-stale", "jax-rocm7-pjrt==0.10.1", "Rewrite the pin"),),
    ),
    Fault(
        name="no requirement on jaxlib",
        how="left out of pjrt's METADATA",
        inject=make.text("pjrt", _METADATA, "Requires-Dist: jaxlib>=0.10.2,<0.10.3\n", ""),
        catches=(
            _inspection("jaxlib-unpinned", "jaxlib", "Add the range of jaxlib", warns=True),
            Catch(gate="install", code="pair-accepted", names="jaxlib 0.11.0", remedy="Let its Requires-Dist name"),
        ),
        wheel="pjrt",
    ),
    Fault(
        name="missing Requires-Python",
        how="left out of the plugin's METADATA",
        inject=make.text("plugin", _METADATA, "Requires-Python: >=3.11\n", ""),
        catches=(_inspection("requires-python-missing", "every Python", "Add Requires-Python", warns=True),),
    ),
    Fault(
        name="purelib",
        how="`Root-Is-Purelib: true` in the plugin's WHEEL",
        inject=make.text("plugin", "{info}/WHEEL", "Root-Is-Purelib: false", "Root-Is-Purelib: true"),
        catches=(_inspection("purelib-with-elf", "Root-Is-Purelib", "Write `Root-Is-Purelib: false`"),),
    ),
    Fault(
        name="WHEEL for another Python than the file name",
        how="Tag: cp311-cp311 in the WHEEL of the wheel for 3.12",
        inject=make.text("plugin", "{info}/WHEEL", "Tag: cp312-cp312", "Tag: cp311-cp311"),
        catches=(_inspection("tag-mismatch", "cp311-cp311", "Write the same tags"),),
    ),
    Fault(
        name="duplicate file in RECORD",
        how="`_rnn.so` listed twice",
        inject=make.record(make.twice),
        catches=(_inspection("record-duplicate-entry", _RNN, "Get the wheel anew"),),
    ),
    Fault(
        name="wrong hash in RECORD",
        how="the hashes of `_rnn.so` and `_prng.so` swapped",
        inject=make.record(make.wrong_hash),
        catches=(_inspection("record-wrong-hash", _RNN, "Get the wheel anew"),),
    ),
    Fault(
        name="file that RECORD does not list",
        how="the entry of `_rnn.so` left out",
        inject=make.record(make.unlisted),
        catches=(_inspection("record-missing-entry", _RNN, "Get the wheel anew"),),
    ),
    Fault(
        name="damaged archive",
        how="one bit of the compressed `_triton.so` flipped",
        inject=make.damaged_archive,
        catches=(_inspection("member-damaged", _TRITON, "Get the wheel anew"),),
    ),
    Fault(
        name="wheel altered after staging",
        how="one bit of the staged plugin flipped",
        inject=make.altered_after_staging,
        catches=(_inspection("gate-error", "sha256", "Stage the set again"),),
    ),
)

BEYOND = (
    Fault(
        name="damaged machine code with a right checksum",
        how="one bit in gfx942's instructions in `_prng.so` flipped, packed again",
        inject=make.library("_prng.so", make.device_code(make.other_instructions)),
        catches=(),
    ),
)
"""What no gate here can see: only a GPU shows it."""

TROUBLE = (
    (
        "a convolution aborts where there is no device",
        "compile: a known failure that names SIGABRT; the programs after it are compiled",
        "test_compile_real.py::test_known_trouble_of_0_12_0_is_known",
    ),
    (
        "kernels that only some targets have",
        "coverage: passes by the entries of `kernel_rules.toml`; `kernel-missing` without them",
        "test_adopt_real.py::test_0_12_needs_its_rules_and_nothing_else",
    ),
    (
        "unversioned symbols of std::filesystem",
        "abi: `unversioned-symbol-too-new`, a warning on wheels that others built",
        "test_abi_gate_real.py::test_the_trouble_of_0_12_0_is_told",
    ),
)
"""What is wrong with the published wheels of 0.12.0, what the gates say, and the integration test that shows it."""


def table() -> str:
    """The matrix as Markdown."""
    lines = ["| fault | how it is made | gate: finding |", "|---|---|---|"]
    for fault in FAULTS:
        found = ", ".join(
            f"{catch.gate}: `{catch.code.removesuffix('-')}`" + (" (warning)" if catch.warns else "")
            for catch in fault.catches
        )
        lines.append(f"| {fault.name} | {fault.how} | {found} |")
    lines += ["", "No gate sees this; only a GPU does:", "", "| fault | how it is made |", "|---|---|"]
    lines += [f"| {fault.name} | {fault.how} |" for fault in BEYOND]
    lines += [
        "",
        "The published wheels of 0.12.0 bring trouble of their own:",
        "",
        "| trouble | gate: finding |",
        "|---|---|",
    ]
    lines += [f"| {trouble} | {said} |" for trouble, said, _ in TROUBLE]
    return "\n".join(lines)


def with_table(readme: str) -> str:
    """The text of the README with the matrix between its marks."""
    head, _, rest = readme.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{table()}\n{END}{tail}"


if __name__ == "__main__":
    README.write_text(with_table(README.read_text()))
