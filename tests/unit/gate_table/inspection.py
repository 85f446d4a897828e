"""Faults of single wheels that the gate inspection reports."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

from core.model import Finding
from core.targets import lists
from tests.support.made_kernels import (
    LIBRARY,
    MANIFEST,
    OBJECT,
    OTHER,
    clean_kernels,
    manifest,
    tell,
)
from tests.support.made_wheel import (
    LIB,
    MACHS,
    MODULE,
    MadeWheel,
    clean_pjrt,
    clean_plugin,
    coded,
    fat_binary,
    library,
    linked,
    look,
    with_sections,
)
from tests.support.tiny_elf import TinySymbol
from tests.support.whole_code import Edit, dynamic_entry, segment, whole_code
from tests.unit.gate_table.model import Row, Scene
from wheelkit.elf import constants
from wheelkit.gpu import offload_bundle as bundle

GATE = "inspection"
Break = Callable[[MadeWheel], object]

PACKAGE = "jax_plugins/xla_rocm7"
INIT = f"{PACKAGE}/__init__.py"
VERSION = f"{PACKAGE}/version.py"
CANONICAL = "_ZNSt10filesystem9canonicalERKNS_7__cxx114pathE"
CPP = ("libc.so.6", "libstdc++.so.6")
GOOD = fat_binary()


def _inspect(made: MadeWheel, folder: Path) -> Iterable[Finding]:
    return look(made, folder).findings


def _inspect_unverified(made: MadeWheel, folder: Path) -> Iterable[Finding]:
    """Inspect a wheel without its digests."""
    return look(made, folder, verify=False).findings


def _inspect_small(made: MadeWheel, folder: Path) -> Iterable[Finding]:
    """Inspect a wheel with a size budget that the unbroken wheel meets."""
    with mock.patch("wheelkit.inspect.metadata_rules.SIZE_BUDGET", 100_000):
        return look(made, folder).findings


def _inspect_unpromised(made: MadeWheel, folder: Path) -> Iterable[Finding]:
    """Inspect a wheel without promised targets, as users do."""
    return look(made, folder, targets=None).findings


def _for_every_gpu() -> MadeWheel:
    made = clean_pjrt()
    coded(made, fat_binary(lists()["compiler-supported"]))
    return made


PJRT = Scene(lambda _: clean_pjrt(), _inspect)
PLUGIN = Scene(lambda _: clean_plugin(), _inspect)
KERNELS = Scene(lambda _: clean_kernels(), _inspect)
UNVERIFIED = Scene(lambda _: clean_pjrt(), _inspect_unverified)
SMALL = Scene(lambda _: clean_pjrt(), _inspect_small)
UNPROMISED = Scene(lambda _: _for_every_gpu(), _inspect_unpromised)


# Edits


def archive(old: bytes, new: bytes) -> Break:
    """Change bytes of the archive."""
    return lambda made: setattr(made, "archive", lambda data: data.replace(old, new))


def record(change: Callable[[list[list[str]]], list[list[str]]]) -> Break:
    """Change the rows of RECORD."""
    return lambda made: setattr(made, "record", change)


def file(path: str, data: bytes) -> Break:
    """Add a file."""
    return lambda made: made.files.update({path: data})


def field(name: str, *values: str) -> Break:
    """Change a field of METADATA or WHEEL."""
    return lambda made: made.replace(name, *values)


def metadata(line: str) -> Break:
    """Add a line to METADATA."""
    return lambda made: made.metadata.append(line)


def info(name: str, data: bytes) -> Break:
    """Change a file of dist-info."""
    return lambda made: made.info.update({name: data})


def platform(name: str) -> Break:
    """Change the platforms in the file name and in WHEEL."""

    def edit(made: MadeWheel) -> None:
        made.platform = name
        made.replace("Tag", *(f"py3-none-{tag}" for tag in name.split(".")))

    return edit


def sections(*more: tuple[str, int, int, bytes]) -> Break:
    """Add sections to the library."""
    return lambda made: made.files.update({LIB: with_sections(made.files[LIB], *more)})


def link(*symbols: TinySymbol, **more: Any) -> Break:
    """Change the symbols, needs or search path of the library."""
    return lambda made: linked(made, *symbols, **more)


def tables(edit: Edit) -> Break:
    """Edit the ELF tables of the library."""

    def change(made: MadeWheel) -> None:
        linked(made, spare=1)
        data = bytearray(made.files[LIB])
        edit(data)
        made.files[LIB] = bytes(data)

    return change


def code(*fatbins: bytes) -> Break:
    """Replace the device code of the library."""
    return lambda made: coded(made, *fatbins)


def stored(
    path: str,
    content: bytes,
    old: bytes,
    new: bytes,
) -> Break:
    """Store a file uncompressed, and change it in the archive without changing its CRC."""

    def edit(made: MadeWheel) -> None:
        made.stored = (path,)
        made.files[path] = content or made.files[path]
        archive(old, new)(made)

    return edit


def for_python(python: str, requires_python: str) -> Break:
    """Make the wheel for one Python, with this Requires-Python."""

    def edit(made: MadeWheel) -> None:
        made.python = python
        made.replace("Tag", f"{python}-none-{made.platform}")
        made.replace("Requires-Python", requires_python)

    return edit


def zip_bomb(made: MadeWheel) -> None:
    made.files["zeros"] = bytes(4096)
    archive(struct.pack("<I", 4096), struct.pack("<I", 1 << 30))(made)


def duplicate_member(made: MadeWheel) -> None:
    made.files[f"{PACKAGE}/versioN.py"] = b"x"
    archive(b"versioN.py", b"version.py")(made)


def endless_symbols(made: MadeWheel) -> None:
    elf = bytearray(made.files[LIB])
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    struct.pack_into("<Q", elf, table + 64 + 32, 1 << 60)  # size of section 1, .dynsym
    made.files[LIB] = bytes(elf)


def no_wheel_file(made: MadeWheel) -> None:
    archive(b"dist-info/WHEEL", b"dist-info/wheel")(made)
    made.record = lambda rows: [
        [row[0].replace("/WHEEL", "/wheel"), *row[1:]] for row in rows
    ]


def other_version(made: MadeWheel) -> None:
    made.replace("Version", "1.2.4")
    made.files[VERSION] = made.files[VERSION].replace(b"1.2.3", b"1.2.4")


def other_project(made: MadeWheel) -> None:
    made.project = "other"
    made.replace("Name", "other")
    made.files["other-1.2.3.data/scripts/pip"] = b""


def optional_jaxlib(made: MadeWheel) -> None:
    made.replace("Requires-Dist", 'jaxlib; extra == "cpu"')
    made.metadata.append("Provides-Extra: cpu")


def dead_extra(made: MadeWheel) -> None:
    made.metadata.append("Provides-Extra: with-rocm")
    made.metadata.append('Requires-Dist: amd_rccl_instinct; extra == "with-rocm"')


def pinned(version: str, *pin: str) -> Break:
    """Change the version of the plugin and its pin of pjrt."""

    def edit(made: MadeWheel) -> None:
        made.version = version
        made.replace("Version", version)
        made.replace("Requires-Dist", "jaxlib>=1.2", *pin)
        made.files["jax_rocm7_plugin/version.py"] = (
            f"_release_version = '{version}'\n".encode()
        )

    return edit


def module(name: str, python: str = "cp312", abi: str = "cp312") -> Break:
    """Rename the extension module, and change the tags of the wheel."""

    def edit(made: MadeWheel) -> None:
        made.files[f"jax_rocm7_plugin/{name}"] = made.files.pop(MODULE)
        made.python = python
        made.abi = abi
        made.replace("Tag", f"{python}-{abi}-{made.platform}")

    return edit


def gemm(change: Callable[[dict[str, Any]], object], *dropped: str) -> Break:
    """Change the module gemm in the manifest of kernels, and remove files."""

    def edit(made: MadeWheel) -> None:
        modules = manifest(made.files)["modules"]
        change(modules["gemm"])
        tell(made, modules=modules)
        for path in dropped:
            del made.files[path]

    return edit


def kernel_file(path: str, content: bytes) -> Break:
    """Replace a file of kernels, with its digest in the manifest."""

    def edit(made: MadeWheel) -> None:
        made.files[path] = content
        tell(made)

    return edit


def no_modules(made: MadeWheel) -> None:
    for path in (LIBRARY, OBJECT, OTHER):
        del made.files[path]
    made.files[MANIFEST] = (
        b'{"schema": 1, "version": "1.2.3", "targets": [], "modules": {}}'
    )


def swapped_objects(module: dict[str, Any]) -> None:
    objects = module["objects"]
    objects["gfx942"], objects["gfx950"] = objects["gfx950"], objects["gfx942"]


LEFTOVERS = (
    "$ORIGIN/../../_solib_x86_64/_Ux:$ORIGIN/a.so.runfiles/__main__/x:/opt/rocm/lib"
)
WRAPPER = struct.pack("<IIQQ", 0x48495046, 1, 0x123456, 0)
COMMENT = b"AMD clang version 22.0.0git (llvm-project roc-7.0.2 26014)\0"
OTHER_KIND = bundle.pack(
    bundle.build([("openmp-amdgcn-amd-amdhsa--gfx942", whole_code())])
)
DAMAGED = GOOD[:24] + bytes(8) + GOOD[32:]
MUSL = library(TinySymbol("x"), fatbins=[GOOD], needed=("libc.musl-x86_64.so.1",))
ENTRY_POINTS = b"[jax_plugins]\nxla_rocm7 = jax_plugins.xla_rocm7\n"
VECTOR = "_ZNSt6vectorIN3roc4BlobESaIS1_EE5shrinkEv"

_EDITS: list[tuple[str, str, Break]] = [
    (
        "archive-damaged",
        "cut short",
        lambda made: setattr(made, "archive", lambda data: data[:-30]),
    ),
    ("archive-damaged", "member twice", duplicate_member),
    ("archive-damaged", "zip bomb", zip_bomb),
    ("archive-damaged", "member above the folder", file("../../evil.py", b"x")),
    (
        "archive-damaged",
        "dist-info of another version",
        archive(b"1.2.3.dist-info", b"9.9.9.dist-info"),
    ),
    (
        "member-damaged",
        "wrong CRC",
        stored(INIT, b"# the original\n", b"# the original\n", b"# changed later"),
    ),
    (
        "member-damaged",
        "wrong CRC of the library",
        stored(LIB, b"", b"fcntl64", b"fcntl65"),
    ),
    (
        "record-wrong-hash",
        "hash of another file",
        record(lambda rows: [[rows[0][0], *rows[1][1:]], *rows[1:]]),
    ),
    (
        "record-wrong-size",
        "another size",
        record(lambda rows: [[*rows[0][:2], "7"], *rows[1:]]),
    ),
    ("record-missing-entry", "file left out", record(lambda rows: rows[1:])),
    (
        "record-no-such-file",
        "unknown file",
        record(lambda rows: [["ghost.py", *rows[0][1:]], *rows]),
    ),
    ("record-duplicate-entry", "file twice", record(lambda rows: [rows[0], *rows])),
    (
        "record-no-sha256",
        "no hash",
        record(lambda rows: [[rows[0][0], "", rows[0][2]], *rows[1:]]),
    ),
    ("record-malformed", "two columns", record(lambda rows: [["only", "two"], *rows])),
    (
        "record-unreadable",
        "not UTF-8",
        record(lambda rows: [["\udcff", "", ""], *rows]),
    ),
    ("mode-private", "0600", lambda made: made.modes.update({LIB: 0o600})),
    (
        "elf-unreadable",
        "truncated",
        lambda made: made.files.update({LIB: made.files[LIB][:4000]}),
    ),
    ("elf-unreadable", "endless symbol table", endless_symbols),
    (
        "library-not-elf",
        "32 bits",
        file(f"{PACKAGE}/old.so", b"\x7fELF\x01\x01\x01" + bytes(60)),
    ),
    ("library-not-elf", "script", file(f"{PACKAGE}/helper.so", b"#!/bin/sh\n:\n")),
    (
        "symbols-not-stripped",
        "symtab",
        sections((".symtab", 2, 0, bytes(6000)), (".strtab", 3, 0, bytes(3000))),
    ),
    ("runpath-build-leftover", "folders of Bazel", link(runpath=LEFTOVERS)),
    (
        "runpath-build-machine",
        "home folder",
        link(runpath="$ORIGIN:/home/builder/rocm/lib"),
    ),
    ("runpath-build-machine", "detour to /tmp", link(runpath="/usr/lib/../../tmp/x")),
    ("runpath-unsafe", "empty entry", link(runpath="$ORIGIN::/opt/rocm/lib")),
    ("runpath-unsafe", "relative entry", link(runpath="lib/rocm")),
    ("runpath-outside", "above site-packages", link(runpath="$ORIGIN/../../../tmp/x")),
    (
        "runpath-excessive",
        "41 entries",
        link(runpath=":".join(f"$ORIGIN/{n}" for n in range(41))),
    ),
    ("rpath-used", "DT_RPATH", link(runpath="$ORIGIN", runpath_tag=constants.DT_RPATH)),
    ("hip-needed-missing", "hipMalloc", link(TinySymbol("hipMalloc"))),
    (
        "needed-not-allowed",
        "path of Bazel",
        link(needed=("libc.so.6", "bazel-out/bin/libown.so")),
    ),
    (
        "needed-not-allowed",
        "foreign library",
        link(needed=("libc.so.6", "libsurprise.so.1")),
    ),
    (
        "symbol-not-allowed",
        "zlib's inflate_fast",
        link(TinySymbol("inflate_fast"), needed=("libz.so.1",)),
    ),
    (
        "symbol-version-too-new",
        "GLIBC_2.34",
        link(TinySymbol("pthread_create", "libc.so.6", "GLIBC_2.34")),
    ),
    (
        "unversioned-symbol-too-new",
        "std::filesystem",
        link(TinySymbol(CANONICAL), needed=CPP),
    ),
    ("unversioned-symbol-unknown", "std::vector of nobody", link(TinySymbol(VECTOR))),
    ("machine-foreign", "aarch64", link(machine=183)),
    ("machine-foreign", "unknown", link(machine=247)),
    ("isa-too-new", "note of x86-64-v3", link(isa_needed=4)),
    ("libc-foreign", "musl", file(LIB, MUSL)),
    ("tag-mismatch", "empty Tag", field("Tag", "")),
    ("tag-mismatch", "WHEEL of 2_17", field("Tag", "py3-none-manylinux_2_17_x86_64")),
    ("tag-untrue", "any", platform("any")),
    ("tag-unjudged", "unknown platform", platform("manylinux_2_999_x86_64")),
    (
        "tag-unjudged",
        "auditwheel cannot read it",
        sections((".symtab", 2, 0, bytes(600))),
    ),
    ("tag-linux", "linux_x86_64", platform("linux_x86_64")),
    ("purelib-with-elf", "Root-Is-Purelib", field("Root-Is-Purelib", "true")),
    ("bundle-damaged", "wrong digest", code(GOOD, DAMAGED)),
    (
        "bundle-damaged",
        "wrapper of no bundle",
        sections((".hipFatBinSegment", 1, 3, WRAPPER)),
    ),
    (
        "code-object-wrong",
        "gfx1100 as gfx950",
        code(GOOD, fat_binary(machs={"gfx950": MACHS["gfx1100"]})),
    ),
    ("target-extra", "openmp", code(GOOD, OTHER_KIND)),
    ("stack-executable", "flags", tables(segment(0x6474E551, 4, "I", 7))),
    ("stack-executable", "no PT_GNU_STACK", tables(segment(0x6474E551, 0, "I", 0))),
    ("code-writable", "flags of the segment", tables(segment(1, 4, "I", 7))),
    ("code-writable", "DT_TEXTREL", tables(dynamic_entry(constants.DT_TEXTREL, 0))),
    ("code-writable", "DF_TEXTREL", tables(dynamic_entry(constants.DT_FLAGS, 4))),
    ("relro-missing", "no PT_GNU_RELRO", tables(segment(0x6474E552, 0, "I", 0))),
    (
        "load-flags-wrong",
        "static TLS",
        tables(dynamic_entry(constants.DT_FLAGS, constants.DF_STATIC_TLS)),
    ),
    ("target-missing", "no gfx950", code(fat_binary(["gfx942"]))),
    ("target-extra", "gfx1100", code(fat_binary(["gfx942", "gfx950", "gfx1100"]))),
    (
        "target-extra",
        "generic",
        code(fat_binary(["gfx942", "gfx950", "gfx9-4-generic"])),
    ),
    ("target-refused", "gfx906", code(fat_binary(["gfx906", "gfx942", "gfx950"]))),
    ("device-code-missing", "no bundle", code()),
    ("metadata-unreadable", "not UTF-8", info("METADATA", b"Name: \xff")),
    ("metadata-unreadable", "BOM", info("METADATA", b"\xef\xbb\xbfName: x")),
    ("metadata-unreadable", "no WHEEL", no_wheel_file),
    ("metadata-mismatch", "Version", other_version),
    ("metadata-mismatch", "Name", field("Name", "jax-rocm8-pjrt")),
    (
        "metadata-mismatch",
        "invalid requirement",
        metadata("Requires-Dist: scipy >>> 1"),
    ),
    ("metadata-invalid", "Version twice", metadata("Version: 1.2.3")),
    ("metadata-invalid", "Metadata-Version", field("Metadata-Version", "9.9")),
    ("metadata-invalid", "unknown field", metadata("Colour: red")),
    ("metadata-invalid", "Wheel-Version", field("Wheel-Version", "2.0")),
    ("metadata-invalid", "no Root-Is-Purelib", field("Root-Is-Purelib")),
    (
        "metadata-invalid",
        "missing licence file",
        lambda made: made.info.pop("licenses/LICENSE.txt"),
    ),
    (
        "license-missing",
        "no licence",
        lambda made: made.info.pop("licenses/LICENSE.txt"),
    ),
    (
        "summary-rocm-unknown",
        "unknown",
        field("Summary", "JAX PJRT plugin (ROCm:unknown)"),
    ),
    ("summary-rocm-wrong", "compiler of 7.0.2", sections((".comment", 1, 0, COMMENT))),
    ("requires-python-missing", "removed", field("Requires-Python")),
    ("requires-python-wrong", "excludes its Python", for_python("cp312", ">=3.13")),
    (
        "requirement-direct",
        "URL",
        field(
            "Requires-Dist", "jaxlib @ https://example.org/jaxlib-1.2-py3-none-any.whl"
        ),
    ),
    (
        "requirement-unexpected",
        "numpy",
        field("Requires-Dist", "jaxlib>=1.2", "numpy<1"),
    ),
    (
        "jaxlib-unpinned",
        "marker",
        field("Requires-Dist", "jaxlib", 'jax; python_version < "3"'),
    ),
    ("jaxlib-unpinned", "extra", optional_jaxlib),
    ("extra-uninstallable", "distribution of nobody", dead_extra),
    ("entry-point-missing", "no file", lambda made: made.info.pop("entry_points.txt")),
    (
        "entry-point-broken",
        "no module",
        info("entry_points.txt", b"[jax_plugins]\nx = jax_plugins.xla_rocm8\n"),
    ),
    (
        "entry-point-broken",
        "no section",
        info("entry_points.txt", b"xla_rocm7 = jax_plugins.xla_rocm7\n"),
    ),
    (
        "entry-point-unexpected",
        "program",
        info("entry_points.txt", ENTRY_POINTS + b"[console_scripts]\npip = x:y\n"),
    ),
    (
        "entry-point-unexpected",
        "second name",
        info("entry_points.txt", ENTRY_POINTS + b"c = jax_plugins.xla_rocm7\n"),
    ),
    (
        "entry-point-unexpected",
        "function",
        info("entry_points.txt", ENTRY_POINTS[:-1] + b":initialize\n"),
    ),
    ("member-runs-at-start", "pth", file("jax.pth", b"import os\n")),
    ("member-runs-at-start", "sitecustomize", file("sitecustomize.py", b"")),
    (
        "member-runs-at-start",
        "pth in data",
        file("jax_rocm7_pjrt-1.2.3.data/purelib/x.pth", b""),
    ),
    ("member-outside", "namespace package", file("jax_plugins/__init__.py", b"")),
    ("member-outside", "package of others", file("jax/core.py", b"")),
    ("member-outside", "script", file("jax_rocm7_pjrt-1.2.3.data/scripts/pip", b"")),
    ("member-outside", "script of another project", other_project),
    ("python-invalid", "no syntax", file(f"{PACKAGE}/x.py", b"def f(:\n")),
    (
        "python-invalid",
        "syntax of Python 3.12",
        file(f"{PACKAGE}/x.py", b"\ntype X = int\n"),
    ),
    ("python-invalid", "null byte", file(f"{PACKAGE}/x.py", b"\0")),
    (
        "version-unstamped",
        "None",
        file(VERSION, b"_release_version: str | None = None\n"),
    ),
    (
        "version-stale",
        "post release",
        file(VERSION, b"_release_version: str = '1.2.3.post1'\n"),
    ),
    ("pjrt-api-missing", "no GetPjrtApi", link(entry=())),
    ("exports-unexpected", "LLVM", link(TinySymbol("_ZN4llvm4initEv", defined=True))),
]

_PLUGIN_EDITS: list[tuple[str, str, Break]] = [
    ("pin-missing", "no pin", pinned("1.2.3")),
    ("pin-missing", "pin of another ROCm", pinned("1.2.3", "jax-rocm8-pjrt==1.2.3")),
    ("pin-inexact", "lower bound", pinned("1.2.3", "jax-rocm7-pjrt>=1.2.3")),
    ("pin-inexact", "wildcard", pinned("1.2.3", "jax-rocm7-pjrt==1.2.*")),
    (
        "pin-inexact",
        "without label",
        pinned("1.2.3+rocm7.2.0", "jax-rocm7-pjrt==1.2.3"),
    ),
    ("pin-stale", "post release", pinned("1.2.3.post2", "jax-rocm7-pjrt==1.2.3")),
    (
        "pin-stale",
        "marker",
        pinned("1.2.3", 'jax-rocm7-pjrt==1.2.3; python_version < "3"'),
    ),
    (
        "python-tag-wrong",
        "module of Python 3.11",
        module("_linalg.cpython-311-x86_64-linux-gnu.so"),
    ),
    (
        "python-tag-wrong",
        "abi3 without its suffix",
        module("_linalg.so", "cp311", "abi3"),
    ),
    ("python-tag-wrong", "py3", module("_linalg.so", "py3", "none")),
    ("init-name-wrong", "other file name", module("_prng.so")),
]

_KERNEL_EDITS: list[tuple[str, str, Break]] = [
    ("kernels-manifest-damaged", "no JSON", file(MANIFEST, b"{")),
    ("kernels-manifest-damaged", "schema", lambda made: tell(made, schema=2)),
    ("kernels-manifest-untrue", "version", lambda made: tell(made, version="1.2.4")),
    (
        "kernels-manifest-untrue",
        "digest",
        gemm(lambda module: module.update(sha256="0" * 64)),
    ),
    (
        "kernels-manifest-untrue",
        "unlisted object",
        file(OBJECT.replace("a.co", "b.co"), whole_code("gfx942")),
    ),
    ("kernels-manifest-untrue", "objects exchanged", gemm(swapped_objects)),
    ("kernels-missing", "object", gemm(lambda _: None, OBJECT)),
    ("kernels-missing", "no modules", no_modules),
    (
        "kernels-partial",
        "module left out",
        lambda made: tell(made, partial=["rms_norm"]),
    ),
    (
        "kernels-partial",
        "some instances",
        gemm(lambda module: module.update(instances="_n64_")),
    ),
    ("handler-missing", "no export", kernel_file(LIBRARY, library(entry=[]))),
    (
        "target-missing",
        "object of a module",
        gemm(lambda module: module["objects"].pop("gfx950"), OTHER),
    ),
    (
        "code-object-wrong",
        "object of gfx950",
        kernel_file(OBJECT, whole_code("gfx950")),
    ),
    (
        "code-object-wrong",
        "object without kernels",
        kernel_file(OBJECT, whole_code("gfx942", ())),
    ),
    (
        "code-object-wrong",
        "damaged object",
        stored(OBJECT, b"", b"amdhsa--gfx942", b"amdhsa--gfx943"),
    ),
    (
        "code-object-damaged",
        "truncated object",
        kernel_file(OBJECT, whole_code("gfx942")[:120]),
    ),
]

ROWS = [
    *(Row(GATE, name, fault, PJRT, edit) for name, fault, edit in _EDITS),
    *(Row(GATE, name, fault, PLUGIN, edit) for name, fault, edit in _PLUGIN_EDITS),
    *(Row(GATE, name, fault, KERNELS, edit) for name, fault, edit in _KERNEL_EDITS),
    Row(
        GATE,
        "member-damaged",
        "library without its digest",
        UNVERIFIED,
        stored(LIB, b"", b"fcntl64", b"fcntl65"),
    ),
    Row(
        GATE,
        "size-budget",
        "large file",
        SMALL,
        file(f"{PACKAGE}/x.py", random.Random(1).randbytes(100_000)),
    ),
    Row(
        GATE,
        "target-uncovered",
        "gfx950 of XLA's list",
        UNPROMISED,
        code(fat_binary(["gfx942"])),
    ),
]
