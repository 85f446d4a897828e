"""Every finding of an inspection, each for a wheel that is broken in exactly this way."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.model import Finding, Severity
from tests.support.made_wheel import (
    LIB,
    MACHS,
    MadeWheel,
    clean_pjrt,
    clean_plugin,
    coded,
    codes,
    fat_binary,
    library,
    linked,
    look,
    with_sections,
)
from tests.support.tiny_elf import TinySymbol
from tests.support.whole_code import Edit, dynamic_entry, segment, whole_code
from wheelkit import findings
from wheelkit.elf import constants
from wheelkit.elf.reader import ElfImage
from wheelkit.elf.snapshot import HIP_RUNTIME
from wheelkit.findings import REPAIR_PUBLISHED, REPORT_PUBLISHED, as_published, finding, finding_kinds
from wheelkit.gpu import bundle
from wheelkit.inspect.metadata import rocm_in_summary

CANONICAL = "_ZNSt10filesystem9canonicalERKNS_7__cxx114pathE"
WHEEL_SOURCES = Path(findings.__file__).parent


@pytest.mark.parametrize("make", [clean_pjrt, clean_plugin])
@pytest.mark.parametrize("verify", [True, False])
def test_inspect_clean_wheel_has_no_findings(make: Callable[[], MadeWheel], verify: bool, tmp_path: Path) -> None:
    report = look(make(), tmp_path, verify=verify)
    assert report.findings == ()
    assert list(tmp_path.iterdir()) == [tmp_path / report.filename]


# One way to break a pjrt wheel for each code; most edits cause only the finding of their own code.

Break = Callable[[MadeWheel], object]
INIT, VERSION = "jax_plugins/xla_rocm7/__init__.py", "jax_plugins/xla_rocm7/version.py"


def case(code: str, edit: Break, *also: str, says: str = "") -> object:
    """Return a way to break a wheel: expected codes, with unavoidable ones in `also`, and a key phrase of a message."""
    return pytest.param(edit, {code, *also}, says, id=f"{code} {says}".strip())


def damaged(old: bytes, new: bytes) -> Break:
    """Change the bytes of the archive."""
    return lambda made: setattr(made, "archive", lambda data: data.replace(old, new))


def recorded(change: Callable[[list[list[str]]], list[list[str]]]) -> Break:
    """Change the rows of RECORD."""
    return lambda made: setattr(made, "record", change)


def held(path: str, data: bytes) -> Break:
    """Add a member with this content."""
    return lambda made: made.files.update({path: data})


def field(name: str, *values: str) -> Break:
    """Change the values of a field in METADATA or WHEEL."""
    return lambda made: made.replace(name, *values)


def platform(name: str) -> Break:
    """Change the platforms of the wheel in its name and in WHEEL."""

    def edit(made: MadeWheel) -> None:
        made.platform = name
        made.replace("Tag", *(f"py3-none-{tag}" for tag in name.split(".")))

    return edit


def sections(*more: tuple[str, int, int, bytes]) -> Break:
    """Add sections to the library."""
    return lambda made: made.files.update({LIB: with_sections(made.files[LIB], *more)})


def made_of(*symbols: TinySymbol, **more: Any) -> Break:
    """Change the symbols or needs of a library."""
    return lambda made: linked(made, *symbols, **more)


def edited(edit: Edit) -> Break:
    """Edit the ELF tables of a library."""

    def change(made: MadeWheel) -> None:
        linked(made, spare=1)
        data = bytearray(made.files[LIB])
        edit(data)
        made.files[LIB] = bytes(data)

    return change


def longer(tag: int) -> Edit:
    """Add 8 bytes to a size in the dynamic table."""

    def edit(data: bytearray) -> None:
        entry = next(entry for entry in ElfImage.parse(bytes(data), "library").dynamic() if entry.tag == tag)
        constants.DYNAMIC.pack_into(data, entry.offset, tag, entry.value + 8)

    return edit


def bundles(*fatbins: bytes) -> Break:
    """Replace the fat binaries of a library."""
    return lambda made: coded(made, *fatbins)


def stored(path: str, content: bytes | None, old: bytes, new: bytes) -> Break:
    """Store a member uncompressed, and change it in the archive without changing its CRC."""

    def edit(made: MadeWheel) -> None:
        made.stored = (path,)
        made.files[path] = content or made.files[path]
        damaged(old, new)(made)

    return edit


def requires(*requirements: str) -> Break:
    """Replace the requirements in METADATA."""
    return field("Requires-Dist", *requirements)


def for_python(python: str, requires_python: str) -> Break:
    """Make a wheel for one Python, with this Requires-Python."""

    def edit(made: MadeWheel) -> None:
        made.python = python
        made.replace("Tag", f"{python}-none-{made.platform}")
        made.replace("Requires-Python", requires_python)

    return edit


def bomb(made: MadeWheel) -> None:
    made.files["zeros"] = bytes(4096)
    damaged(struct.pack("<I", 4096), struct.pack("<I", 1 << 30))(made)


def duplicate_member(made: MadeWheel) -> None:
    made.files["jax_plugins/xla_rocm7/versioN.py"] = b"x"
    damaged(b"versioN.py", b"version.py")(made)


def dynamic_symbols_without_end(made: MadeWheel) -> None:
    elf = bytearray(made.files[LIB])
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    struct.pack_into("<Q", elf, table + 64 + 32, 1 << 60)  # size of section 1, .dynsym
    made.files[LIB] = bytes(elf)


def rpath(made: MadeWheel) -> None:
    linked(made, runpath="$ORIGIN")
    old = made.files[LIB]
    made.files[LIB] = old.replace(struct.pack("<q", 29), struct.pack("<q", 15))
    assert made.files[LIB] != old


def no_wheel_file(made: MadeWheel) -> None:
    damaged(b"dist-info/WHEEL", b"dist-info/wheel")(made)
    made.record = lambda rows: [[row[0].replace("/WHEEL", "/wheel"), *row[1:]] for row in rows]


def other_version(made: MadeWheel) -> None:
    made.replace("Version", "1.2.4")
    made.files[VERSION] = made.files[VERSION].replace(b"1.2.3", b"1.2.4")


def other_project(made: MadeWheel) -> None:
    made.project = "other"
    made.replace("Name", "other")
    made.files["other-1.2.3.data/scripts/pip"] = b""


def any_jaxlib(made: MadeWheel) -> None:
    made.replace("Requires-Dist", 'jaxlib; extra == "cpu"')
    made.metadata.append("Provides-Extra: cpu")


def dead_extra(made: MadeWheel) -> None:
    made.metadata += ["Provides-Extra: with-rocm"]
    made.metadata += [f'Requires-Dist: amd_{x}_instinct; extra == "with-rocm"' for x in ("rccl", "hipfft")]
    made.metadata += ['Requires-Dist: scipy; extra == "with-rocm"']


def entry_points(text: bytes) -> Break:
    return lambda made: made.info.update({"entry_points.txt": text})


GOOD = fat_binary()
OTHER_KIND = bundle.pack(bundle.build([("openmp-amdgcn-amd-amdhsa--gfx942", whole_code())]))
MODEST = library(TinySymbol("malloc", "libc.so.6", "GLIBC_2.2.5"), fatbins=[GOOD])
MUSL = library(TinySymbol("x"), fatbins=[GOOD], needed=("libc.musl-x86_64.so.1",))
LEFTOVERS = "$ORIGIN/../../_solib_x86_64/_Ux:$ORIGIN/a.so.runfiles/__main__/x:/opt/rocm/lib"
WRAPPER = struct.pack("<IIQQ", 0x48495046, 1, 0x123456, 0)
COMMENT = b"AMD clang version 22.0.0git (llvm-project roc-7.0.2 26014)\0"
CPP = ("libc.so.6", "libstdc++.so.6")
BREAKS = [
    case("archive-damaged", lambda made: setattr(made, "archive", lambda data: data[:-30]), says="cut short"),
    case("archive-damaged", duplicate_member, says="occurs 2 times"),
    case("archive-damaged", bomb, says="zip bomb"),
    case("archive-damaged", held("../../evil.py", b"x"), says=".."),
    case("archive-damaged", held("/etc/evil.py", b"x"), says="absolute"),
    case("archive-damaged", damaged(b"1.2.3.dist-info", b"9.9.9.dist-info"), says="not match the file name"),
    case("member-damaged", stored(INIT, b"# the original\n", b"# the original\n", b"# changed later"), says="CRC"),
    case("member-damaged", stored(LIB, None, b"fcntl64", b"fcntl65"), says="plugin.so"),
    case("record-wrong-hash", recorded(lambda rows: [[rows[0][0], rows[1][1], rows[0][2]], *rows[1:]])),
    case("record-wrong-size", recorded(lambda rows: [[*rows[0][:2], "7"], *rows[1:]])),
    case("record-missing-entry", recorded(lambda rows: rows[1:]), says="__init__.py"),
    case("record-no-such-file", recorded(lambda rows: [["ghost.py", *rows[0][1:]], *rows]), says="ghost.py"),
    case("record-duplicate-entry", recorded(lambda rows: [rows[0], *rows])),
    case("record-no-sha256", recorded(lambda rows: [[rows[0][0], "", rows[0][2]], *rows[1:]])),
    case("record-malformed", recorded(lambda rows: [["only", "two"], *rows])),
    case("record-unreadable", recorded(lambda rows: [["\udcff", "", ""], *rows])),
    case("mode-private", lambda made: made.modes.update({LIB: 0o600}), says="0600"),
    case("elf-unreadable", lambda made: made.files.update({LIB: made.files[LIB][:4000]})),
    case("elf-unreadable", dynamic_symbols_without_end),
    case("elf-not-read", held("jax_plugins/xla_rocm7/old.so", b"\x7fELF\x01\x01\x01" + bytes(60))),
    case("library-not-elf", held("jax_plugins/xla_rocm7/helper.so", b"#!/bin/sh\n:\n"), says="12 bytes, but no ELF"),
    case("library-not-elf", held("jax_plugins/xla_rocm7/libhelper.so.1", b""), says="0 bytes, but no ELF"),
    case(
        "symbols-not-stripped",
        sections((".symtab", 2, 0, bytes(6000)), (".strtab", 3, 0, bytes(3000))),
        says="9.0 kB",
    ),
    case("runpath-build-leftover", made_of(runpath=LEFTOVERS), says="2 of 3 entries"),
    case("runpath-build-machine", made_of(runpath="$ORIGIN:/home/builder/rocm/lib"), says="/home/builder"),
    case("runpath-unsafe", made_of(runpath="$ORIGIN::/opt/rocm/lib"), says="(empty)"),
    case("runpath-unsafe", made_of(runpath="lib/rocm"), says="lib/rocm"),
    case("runpath-excessive", made_of(runpath=":".join(f"$ORIGIN/{n}" for n in range(41))), says="41 entries"),
    case("rpath-used", rpath),
    case("hip-needed-missing", made_of(TinySymbol("hipMalloc"), TinySymbol("hipblasCreate")), says="hipMalloc"),
    case(
        "tag-by-exception",
        made_of(TinySymbol("hipMalloc"), needed=("libc.so.6", "libamdhip64.so.7")),
        says="libamdhip64.so.7",
    ),
    case(
        "needed-not-allowed", made_of(needed=("libc.so.6", "libsurprise.so.1")), "tag-untrue", says="libsurprise.so.1"
    ),
    case(
        "symbol-version-too-new",
        made_of(TinySymbol("pthread_create", "libc.so.6", "GLIBC_2.34")),
        "tag-untrue",
        says="manylinux_2_34_x86_64",
    ),
    case(
        "unversioned-symbol-too-new",
        made_of(TinySymbol(CANONICAL), needed=CPP),
        "tag-untrue",
        says="std::filesystem",
    ),
    case("unversioned-symbol-optional", made_of(TinySymbol(CANONICAL, bind="WEAK"), needed=CPP)),
    case("machine-foreign", made_of(machine=183), "tag-untrue"),
    case("isa-too-new", made_of(isa_needed=4), "tag-untrue"),
    case("libc-foreign", held(LIB, MUSL), "tag-untrue", "needed-not-allowed"),
    case("tag-mismatch", field("Tag", "py3-none-manylinux_2_17_x86_64")),
    case("tag-untrue", platform("any"), says="`any`"),
    case("tag-unjudged", platform("manylinux_2_999_x86_64")),
    case("tag-unjudged", sections((".symtab", 2, 0, bytes(600))), says="auditwheel cannot read"),
    case("tag-too-new", held(LIB, MODEST), says="manylinux_2_5_x86_64"),
    case("tag-too-new", platform("linux_x86_64"), says="linux_x86_64 promises nothing"),
    case("tag-redundant", platform("manylinux_2_28_x86_64.manylinux_2_34_x86_64"), says="manylinux_2_34_x86_64"),
    case("purelib-with-elf", field("Root-Is-Purelib", "true")),
    case("bundle-damaged", bundles(GOOD, GOOD[:24] + bytes(8) + GOOD[32:]), says="MD5"),
    case("bundle-damaged", sections((".hipFatBinSegment", 1, 3, WRAPPER)), says="0x123456"),
    case("code-object-wrong", bundles(GOOD, fat_binary(machs={"gfx950": MACHS["gfx1100"]})), says="gfx1100"),
    case(
        "bundle-entry-unknown",
        bundles(GOOD, OTHER_KIND),
        "bundles-uneven",
        "target-extra",
        "target-refused",
        says="openmp-amdgcn",
    ),
    case(
        "code-lost",
        sections((".text.cold", 1, 6, b"\xc3" + bytes(256))),
        "layout-wrong",
        says="zeros instead of machine code at",
    ),
    case("stack-executable", edited(segment(0x6474E551, 4, "I", 7)), says="executable stack."),
    case("stack-executable", edited(segment(0x6474E551, 0, "I", 0)), says="no PT_GNU_STACK"),
    case("segment-unmappable", edited(segment(1, 48, "Q", 16)), says="cannot be mapped"),
    case("segment-unmappable", edited(segment(1, 48, "Q", 4097)), says="cannot be mapped"),
    case("segment-unmappable", edited(segment(1, 40, "Q", 16)), says="cannot be mapped"),
    case("code-writable", edited(segment(1, 4, "I", 7)), says="writable and executable"),
    case("code-writable", edited(dynamic_entry(constants.DT_TEXTREL, 0)), says="relocations in its code"),
    case("segment-unmappable", edited(segment(1, 48, "Q", 1 << 40)), says="cannot be mapped"),
    case("dynamic-table-wrong", edited(dynamic_entry(constants.DT_RELAENT, 16)), says="16 instead of 24 as entry 9"),
    case("dynamic-table-wrong", edited(dynamic_entry(constants.DT_PLTREL, 17)), says="17 instead of 7 as entry 20"),
    case(
        "load-flags-wrong",
        edited(dynamic_entry(constants.DT_FLAGS, constants.DF_STATIC_TLS)),
        says="DF_STATIC_TLS",
    ),
    case("code-writable", edited(dynamic_entry(constants.DT_FLAGS, 4)), says="relocations in its code"),
    case("relro-missing", edited(segment(0x6474E552, 0, "I", 0)), says="PT_GNU_RELRO"),
    case("load-flags-wrong", edited(dynamic_entry(constants.DT_FLAGS_1, 0x408)), says="the flags 0x400"),
    case("load-flags-wrong", edited(dynamic_entry(constants.DT_FILTER, 1)), says="DT_FILTER"),
    case("dynamic-table-wrong", edited(longer(constants.DT_STRSZ)), says="bytes of names, but "),
    case("runpath-outside", made_of(runpath="$ORIGIN/../../../tmp/x:$ORIGIN/../../_rocm_sdk_core/lib"), says="1 of 2"),
    case("runpath-build-machine", made_of(runpath="/usr/lib/../../tmp/x"), says="/usr/lib/../../tmp/x"),
    case("runpath-unsafe", made_of(runpath="$ORIGINAL/lib"), says="$ORIGINAL/lib"),
    case("target-missing", bundles(fat_binary(["gfx942"])), says="gfx950"),
    case("target-extra", bundles(fat_binary(["gfx942", "gfx950", "gfx1100"])), "target-refused", says="gfx1100"),
    case("target-extra", bundles(fat_binary(["gfx942", "gfx950", "gfx9-4-generic"])), says="gfx9-4-generic"),
    case("target-refused", bundles(fat_binary(["gfx906", "gfx942", "gfx950"])), "target-extra", says="1 of 3 targets"),
    case("bundles-uneven", bundles(GOOD, fat_binary(["gfx942"])), says="gfx950 in 1"),
    case("device-code-missing", bundles()),
    case(
        "metadata-unreadable",
        lambda made: made.info.update({"METADATA": b"Name: \xff"}),
        "metadata-mismatch",
        "requires-python-missing",
    ),
    case("metadata-unreadable", no_wheel_file, "tag-mismatch"),
    case("metadata-mismatch", other_version, says="Version 1.2.4"),
    case("metadata-mismatch", field("Name", "jax-rocm8-pjrt"), says="Name jax-rocm8-pjrt"),
    case(
        "metadata-mismatch",
        lambda made: made.metadata.append("Requires-Dist: scipy >>> 1"),
        "metadata-invalid",
        says="not a requirement",
    ),
    case("summary-rocm-unknown", field("Summary", "JAX PJRT plugin (ROCm:unknown)")),
    case("summary-rocm-wrong", sections((".comment", 1, 0, COMMENT)), says="7.0.2"),
    case("requires-python-missing", field("Requires-Python")),
    case(
        "license-missing",
        lambda made: made.info.pop("licenses/LICENSE.txt"),
        "metadata-invalid",
        says="which the wheel lacks",
    ),
    case("metadata-invalid", lambda made: made.metadata.append("Version: 1.2.3"), says="'version' has invalid data"),
    case("metadata-invalid", lambda made: made.metadata.append("Requires-Python: >=3.9"), says="'requires-python'"),
    case("metadata-invalid", field("Metadata-Version", "9.9"), says="9.9"),
    case("metadata-invalid", field("License-Expression", "Apache Two"), says="Apache Two"),
    case("metadata-invalid", lambda made: made.metadata.append("Colour: red"), says="colour"),
    case("metadata-invalid", field("Wheel-Version", "2.0"), says="Wheel-Version 2.0, not 1.0"),
    case("metadata-invalid", field("Root-Is-Purelib"), says="Root-Is-Purelib (nothing), not true or false"),
    case("metadata-invalid", lambda made: made.info.update({"direct_url.json": b"{}"}), says="only installers"),
    case("requirement-direct", requires("jaxlib @ https://example.org/jaxlib-1.2-py3-none-any.whl"), says="jaxlib"),
    case("requirement-unexpected", requires("jaxlib>=1.2", "numpy<1"), says="requires numpy"),
    case("jaxlib-unpinned", requires('jaxlib>=1.2; python_version < "3"'), says="every jaxlib"),
    case("jaxlib-unpinned", requires("jax", 'jaxlib>=1.2; python_version < "3"'), says="which a marker can exclude"),
    case(
        "entry-point-unexpected",
        lambda made: made.info.update(
            {"entry_points.txt": made.info["entry_points.txt"] + b"[console_scripts]\npip = jax_plugins.xla_rocm7:x\n"}
        ),
        says="in the group console_scripts",
    ),
    case("requires-python-wrong", for_python("cp312", ">=3.13"), says="is >=3.13, but the wheel is for Python 3.12"),
    case("unwind-table-wrong", sections((".eh_frame", 1, 2, bytes(8))), says="no PT_GNU_EH_FRAME"),
    case("member-runs-at-start", held("jax.pth", b"import os\n"), says="every start"),
    case("member-runs-at-start", held("sitecustomize.py", b""), says="every start"),
    case("member-runs-at-start", held("jax_rocm7_pjrt-1.2.3.data/purelib/x.pth", b""), says="every start"),
    case(
        "member-outside",
        held("jax_plugins/__init__.py", b""),
        says="outside of jax_plugins/xla_rocm7/: jax_plugins/__init__",
    ),
    case("member-outside", held("jax/core.py", b""), says="1 files are installed outside"),
    case("member-outside", held("jax_rocm7_pjrt-1.2.3.data/scripts/pip", b""), says="data/scripts/pip"),
    case("member-outside", held("jax_rocm7_pjrt-1.2.3.data/data/jax_plugins/xla_rocm7/x.py", b""), says="data/data"),
    case("member-outside", other_project, says="outside of packages: other-1.2.3.data/scripts/pip"),
    case("member-unexpected", held("jax_plugins/xla_rocm7/deploy.pem", b""), says="1 files are neither Python nor"),
    case("member-unexpected", held("jax_plugins/xla_rocm7/x.so.bak", b""), says="x.so.bak"),
    case(
        "assert-acts", held("jax_plugins/xla_rocm7/x.py", b"\nassert not print()\n"), says="the assert in line 2 calls"
    ),
    case("member-names-clash", held(INIT.replace("__init__", "__INIT__"), b""), says="differ in case only"),
    case("bytecode-included", held("jax_plugins/xla_rocm7/__init__.pyc", b""), says="1 compiled Python files"),
    case("mode-writable", lambda made: made.modes.update({LIB: 0o777}), says="0777"),
    case(
        "python-invalid", held("jax_plugins/xla_rocm7/x.py", b"def f(:\n"), says="Python 3.11 cannot parse it in line 1"
    ),
    case("python-invalid", held("jax_plugins/xla_rocm7/x.py", b"\ntype X = int\n"), says="in line 2"),
    case("python-invalid", held("jax_plugins/xla_rocm7/x.py", b"\0"), says="null bytes"),
    case(
        "python-warns",
        held("jax_plugins/xla_rocm7/x.py", b"\nx = '\\d'\n"),
        says="warns of it in line 2: invalid escape sequence",
    ),
    case("version-unstamped", held(VERSION, b"_release_version: str | None = None\n")),
    case("version-stale", held(VERSION, b"_release_version: str | None = '1.2.3.post1'\n"), says="1.2.3.post1"),
    case("jaxlib-unpinned", any_jaxlib),
    case("extra-uninstallable", dead_extra, says="2 distributions"),
    case("entry-point-missing", lambda made: made.info.pop("entry_points.txt")),
    case(
        "entry-point-broken",
        entry_points(b"[jax_plugins]\nxla_rocm7 = jax_plugins.xla_rocm8:initialize [x]\n"),
        says="jax_plugins.xla_rocm8",
    ),
    case(
        "entry-point-unexpected",
        entry_points(b"[jax_plugins]\nxla_rocm7 = jax_plugins.xla_rocm7\ncuda12 = jax_plugins.xla_rocm7\n"),
        says="cuda12 = jax_plugins.xla_rocm7 is not cuda12 = jax_plugins.cuda12",
    ),
    case(
        "entry-point-unexpected",
        entry_points(b"[jax_plugins]\nxla_rocm7 = jax_plugins.xla_rocm7:initialize\n"),
        says="xla_rocm7 = jax_plugins.xla_rocm7:initialize is not xla_rocm7 = jax_plugins.xla_rocm7",
    ),
    case(
        "entry-point-broken",
        entry_points(b"xla_rocm7 = jax_plugins.xla_rocm7\n"),
        "entry-point-missing",
        says="cannot be read",
    ),
    case("pjrt-api-missing", made_of(entry=()), says="no library exports GetPjrtApi"),
    case(
        "exports-unexpected",
        made_of(TinySymbol("_ZN4llvm4initEv", defined=True)),
        says="1 private symbols, such as _ZN4llvm4initEv",
    ),
    case(
        "init-name-wrong",
        made_of(TinySymbol("PyInit_elsewhere", defined=True)),
        "python-tag-wrong",
        says="elsewhere",
    ),
]


@pytest.mark.parametrize(("edit", "expected", "says"), BREAKS)
def test_inspect_broken_wheel_has_expected_findings(edit: Break, expected: set[str], says: str, tmp_path: Path) -> None:
    made = clean_pjrt()
    edit(made)
    report = look(made, tmp_path)
    assert codes(report) == sorted(expected)
    assert says in " ".join(finding.message for finding in report.findings)
    assert [finding for finding in report.findings if not finding.remedy] == []
    assert len({(finding.code, finding.message) for finding in report.findings}) == len(report.findings)


@pytest.mark.parametrize(
    ("summary", "version"),
    [
        ("JAX PJRT plugin (ROCm:7.14.0)", "7.14.0"),
        ("JAX PJRT plugin (ROCm:Legacy ROCm 7.2.0)", "7.2.0"),
        ("JAX on AMD GPUs: plugin (ROCm 7.2.0; gfx942)", "7.2.0"),
        ("JAX PJRT plugin (ROCm:unknown)", ""),
        ("JAX PJRT plugin", ""),
    ],
)
def test_rocm_in_summary_finds_first_version(summary: str, version: str) -> None:
    assert rocm_in_summary(summary) == version


# Wheels as published


def published(project: str, *codes: str) -> list[Finding]:
    return list(as_published([finding(code, "text", member="x.so") for code in codes], project))


def test_as_published_replaces_linking_findings_of_jaxlib_by_one_note() -> None:
    (note,) = published("jaxlib", *["runpath-build-leftover"] * 27, *["symbols-not-stripped"] * 3)
    assert (note.code, note.severity) == ("published-unchanged", Severity.NOTE)
    assert "runpath-build-leftover (27), symbols-not-stripped (3)" in note.message


def test_as_published_keeps_unsafe_search_paths_of_jaxlib() -> None:
    (kept,) = published("jaxlib", "runpath-unsafe")
    assert (kept.code, kept.severity, kept.remedy) == ("runpath-unsafe", Severity.WARNING, REPORT_PUBLISHED)


@pytest.mark.parametrize(
    ("code", "severity", "remedy"),
    [
        ("runpath-build-leftover", Severity.WARNING, REPAIR_PUBLISHED),
        ("jaxlib-unpinned", Severity.WARNING, REPAIR_PUBLISHED),
        ("tag-untrue", Severity.WARNING, REPORT_PUBLISHED),
        ("member-damaged", Severity.ERROR, finding_kinds()["member-damaged"].remedy),
        ("target-uncovered", Severity.NOTE, finding_kinds()["target-uncovered"].remedy),
    ],
)
def test_as_published_names_remedies_that_users_can_follow(code: str, severity: Severity, remedy: str) -> None:
    (made,) = published("jax-rocm7-plugin", code)
    assert (made.code, made.severity, made.remedy) == (code, severity, remedy)


# The table.


@pytest.mark.parametrize("usual", ["v19_dev1_abi_1", "nanobind_3_2_0_abi_1"])
def test_module_of_another_nanobind_is_named(usual: str, tmp_path: Path) -> None:
    made = clean_pjrt()
    for number, tag in enumerate((usual, "v18_abi_1", usual)):
        text = f"\0__nb_internals_%s_%s__\0{tag}\0".encode()
        init = TinySymbol(f"PyInit__m{number}", defined=True)
        module = with_sections(library(entry=(init, TinySymbol("PyErr_Clear"))), (".rodata", 1, 0, text))
        made.files[f"jax_plugins/xla_rocm7/_m{number}.so"] = module
    (found,) = (item for item in look(made, tmp_path).findings if item.code == "bindings-differ")
    assert found.member.endswith("_m1.so")
    assert found.message == f"its tag of nanobind is v18_abi_1, but that of most other modules {usual}."


def test_module_of_another_python_is_named(tmp_path: Path) -> None:
    made = clean_pjrt()
    text = b"\0__nb_internals_v19_abi_1__\0v19_abi_1\0"
    newer, older = "PyErr_GetRaisedException", "PyErr_Fetch"
    for number, calls in enumerate(((newer,), (older,), (newer,), (newer, older))):
        symbols = (TinySymbol(f"PyInit__m{number}", defined=True), *map(TinySymbol, calls))
        module = with_sections(library(entry=symbols), (".rodata", 1, 0, text))
        made.files[f"jax_plugins/xla_rocm7/_m{number}.so"] = module
    found = [item for item in look(made, tmp_path).findings if item.code == "bindings-differ"]
    assert [item.member.rpartition("/")[2] for item in found] == ["_m1.so"]
    assert found[0].message == (f"it calls {older}, but most other modules {newer}, so it is for another Python.")


def test_machine_that_decodes_nothing_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "code-unread" not in {item.code for item in look(clean_pjrt(), tmp_path).findings}
    monkeypatch.setattr("wheelkit.inspect.inspect.CAN_DECODE", False)
    (found,) = (item for item in look(clean_pjrt(), tmp_path).findings if item.code == "code-unread")
    assert found.severity is Severity.NOTE


def test_module_without_init_function_is_named(tmp_path: Path) -> None:
    made = clean_pjrt()
    module = with_sections(
        library(entry=(TinySymbol("PyErr_Clear"),)), (".rodata", 1, 0, b"\0__nb_internals_%s_%s__\0v19_abi_1\0")
    )
    made.files["jax_plugins/xla_rocm7/_m.so"] = made.files["jax_plugins/xla_rocm7/libm.so"] = module
    (found,) = (item for item in look(made, tmp_path).findings if item.code == "init-name-wrong")
    assert found.message == "_m.so exports no PyInit function."


def test_every_finding_kind_has_a_test() -> None:
    files = ("test_findings.py", "test_inspect.py", "test_kernel_wheel.py")
    here = "".join((Path(__file__).parent / name).read_text() for name in files)
    elsewhere = {"symbol-not-allowed", "unversioned-symbol-unknown"}  # tests/unit/wheelkit/test_manylinux.py
    elsewhere |= {"code-object-damaged", "kernel-descriptor-wrong", "kernel-metadata-wrong"}  # test_code_check.py
    elsewhere |= {"layout-wrong", "relocation-wrong"}  # test_layout.py
    elsewhere.add("compilers-differ")  # test_fatbin.py
    elsewhere.add("instrumented")  # test_functions.py
    elsewhere |= {
        "registration-missing",
        "registration-wrong",
    }  # tests/unit/promotion/test_load_registered.py and test_coverage.py
    elsewhere |= {"variable-missing", "variable-differs"}  # tests/unit/promotion/test_load_registered.py
    shown = {code for code in finding_kinds() if f'"{code}"' in here}
    assert sorted(finding_kinds().keys() - shown - elsewhere) == []


def test_every_finding_code_is_in_the_table() -> None:
    made = {
        code
        for path in WHEEL_SOURCES.rglob("*.py")
        for code in re.findall(r'\b_?(?:finding|problem)\(\s*"([a-z0-9]+(?:-[a-z0-9]+)+)"', path.read_text())
    }
    assert len(made) > 40
    assert sorted(made - finding_kinds().keys()) == []


def test_finding_kinds_remedies_are_one_line() -> None:
    assert [code for code, rule in finding_kinds().items() if len(rule.remedy) > 90 or "\n" in rule.remedy] == []
    assert [
        code for code, rule in finding_kinds().items() if not rule.remedy.endswith(".") or len(rule.title) > 45
    ] == []


@pytest.mark.parametrize(
    ("name", "matches"),
    [
        *((name, True) for name in ("hipMalloc", "__hipRegisterFatBinary", "hipGetDevicePropertiesR0600")),
        *((name, False) for name in ("hipblasCreate", "hipsolverDnCreate", "chipMalloc", "hip", "hipfftPlan1d")),
    ],
)
def test_hip_runtime_matches_its_functions_only(name: str, matches: bool) -> None:
    assert (HIP_RUNTIME.fullmatch(name) is not None) is matches
