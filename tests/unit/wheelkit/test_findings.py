"""Every finding of an inspection, each from a wheel that is broken in exactly that way."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.made_wheel import (
    LIB,
    MACHS,
    MadeWheel,
    clean_pjrt,
    clean_plugin,
    code_object,
    coded,
    codes,
    fat_binary,
    library,
    linked,
    look,
    with_sections,
)
from tests.support.tiny_elf import TinySymbol
from wheelkit import findings
from wheelkit.elf.snapshot import HIP_RUNTIME
from wheelkit.findings import FINDING_KINDS

CANONICAL = "_ZNSt10filesystem9canonicalERKNS_7__cxx114pathE"
WHEEL_SOURCES = Path(findings.__file__).parent


@pytest.mark.parametrize("make", [clean_pjrt, clean_plugin])
@pytest.mark.parametrize("verify", [True, False])
def test_inspect_clean_wheel_has_no_findings(make: Callable[[], MadeWheel], verify: bool, tmp_path: Path) -> None:
    report = look(make(), tmp_path, verify=verify)
    assert report.findings == ()
    assert list(tmp_path.iterdir()) == [tmp_path / report.filename]


# One way to break a pjrt wheel for each code: (edit of the wheel, expected codes, key phrase of a message); most edits
# cause only the finding of their own code.

Break = Callable[[MadeWheel], object]
BREAKS: dict[str, tuple[Break, set[str], str]] = {}


def breaks(code: str, *also: str, says: str = "") -> Callable[[Break], Break]:
    """Register how to break a wheel for a code; `also` are the findings that cannot be avoided with it."""

    def register(function: Break) -> Break:
        BREAKS[f"{code}:{function.__name__}"] = (function, {code, *also}, says)
        return function

    return register


@breaks("archive-damaged", says="cut short")
def truncated(made: MadeWheel) -> None:
    made.archive = lambda data: data[:-30]


@breaks("archive-damaged", says="occurs 2 times")
def duplicate_member(made: MadeWheel) -> None:
    made.files["jax_plugins/xla_rocm7/versioN.py"] = b"x"
    made.archive = lambda data: data.replace(b"versioN.py", b"version.py")


@breaks("archive-damaged", says="zip bomb")
def bomb(made: MadeWheel) -> None:
    made.files["zeros"] = bytes(4096)

    def claim(data: bytes) -> bytes:
        size, huge = struct.pack("<I", 4096), struct.pack("<I", 1 << 30)
        return data.replace(size, huge)

    made.archive = claim


@breaks("archive-damaged", says="..")
def path_escape(made: MadeWheel) -> None:
    made.files["../../evil.py"] = b"x"


@breaks("archive-damaged", says="absolute")
def absolute_path(made: MadeWheel) -> None:
    made.files["/etc/evil.py"] = b"x"


@breaks("archive-damaged", says="not match the file name")
def foreign_dist_info(made: MadeWheel) -> None:
    made.archive = lambda data: data.replace(b"1.2.3.dist-info", b"9.9.9.dist-info")


@breaks("member-damaged", says="CRC")
def wrong_crc(made: MadeWheel) -> None:
    made.stored = ("jax_plugins/xla_rocm7/__init__.py",)
    made.files[made.stored[0]] = b"# the original\n"
    made.archive = lambda data: data.replace(b"# the original\n", b"# changed later")


@breaks("member-damaged", says="plugin.so")
def library_with_wrong_crc(made: MadeWheel) -> None:
    made.stored = (LIB,)
    made.archive = lambda data: data.replace(b"fcntl64", b"fcntl65")


@breaks("record-wrong-hash")
def other_hash(made: MadeWheel) -> None:
    made.record = lambda rows: [[rows[0][0], rows[1][1], rows[0][2]], *rows[1:]]


@breaks("record-wrong-size")
def other_size(made: MadeWheel) -> None:
    made.record = lambda rows: [[*rows[0][:2], "7"], *rows[1:]]


@breaks("record-missing-entry", says="__init__.py")
def no_entry(made: MadeWheel) -> None:
    made.record = lambda rows: rows[1:]


@breaks("record-no-such-file", says="ghost.py")
def ghost(made: MadeWheel) -> None:
    made.record = lambda rows: [["ghost.py", *rows[0][1:]], *rows]


@breaks("record-duplicate-entry")
def entry_twice(made: MadeWheel) -> None:
    made.record = lambda rows: [rows[0], *rows]


@breaks("record-no-sha256")
def entry_without_hash(made: MadeWheel) -> None:
    made.record = lambda rows: [[rows[0][0], "", rows[0][2]], *rows[1:]]


@breaks("record-malformed")
def entry_with_two_fields(made: MadeWheel) -> None:
    made.record = lambda rows: [["only", "two"], *rows]


@breaks("record-unreadable")
def record_is_not_text(made: MadeWheel) -> None:
    made.record = lambda rows: [["\udcff", "", ""], *rows]


@breaks("mode-private", says="0600")
def private_mode(made: MadeWheel) -> None:
    made.modes[LIB] = 0o600


@breaks("elf-unreadable")
def library_cut_off(made: MadeWheel) -> None:
    made.files[LIB] = made.files[LIB][:4000]


@breaks("elf-unreadable")
def dynamic_symbols_without_end(made: MadeWheel) -> None:
    elf = bytearray(made.files[LIB])
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    struct.pack_into("<Q", elf, table + 64 + 32, 1 << 60)  # size of section 1, .dynsym
    made.files[LIB] = bytes(elf)


@breaks("elf-not-read")
def library_of_32_bits(made: MadeWheel) -> None:
    made.files["old.so"] = b"\x7fELF\x01\x01\x01" + bytes(60)


@breaks("symbols-not-stripped", says="9.0 kB")
def symbol_tables(made: MadeWheel) -> None:
    made.files[LIB] = with_sections(made.files[LIB], (".symtab", 2, 0, bytes(6000)), (".strtab", 3, 0, bytes(3000)))


@breaks("runpath-build-leftover", says="2 of 3 entries")
def runpath_leftovers(made: MadeWheel) -> None:
    linked(made, runpath="$ORIGIN/../../_solib_x86_64/_Ux:$ORIGIN/a.so.runfiles/__main__/x:/opt/rocm/lib")


@breaks("runpath-build-machine", says="/home/builder")
def runpath_of_a_machine(made: MadeWheel) -> None:
    linked(made, runpath="$ORIGIN:/home/builder/rocm/lib")


@breaks("runpath-unsafe", says="(empty)")
def runpath_with_empty_entry(made: MadeWheel) -> None:
    linked(made, runpath="$ORIGIN::/opt/rocm/lib")


@breaks("runpath-unsafe", says="lib/rocm")
def runpath_relative(made: MadeWheel) -> None:
    linked(made, runpath="lib/rocm")


@breaks("runpath-excessive", says="41 entries")
def runpath_too_long(made: MadeWheel) -> None:
    linked(made, runpath=":".join(f"$ORIGIN/{number}" for number in range(41)))


@breaks("rpath-used")
def rpath(made: MadeWheel) -> None:
    linked(made, runpath="$ORIGIN")
    old = made.files[LIB]
    made.files[LIB] = old.replace(struct.pack("<q", 29), struct.pack("<q", 15))
    assert made.files[LIB] != old


@breaks("hip-needed-missing", says="hipMalloc")
def hip_without_needed(made: MadeWheel) -> None:
    linked(made, TinySymbol("hipMalloc"), TinySymbol("hipblasCreate"))


@breaks("tag-by-exception", says="libamdhip64.so.7")
def hip_with_needed(made: MadeWheel) -> None:
    linked(made, TinySymbol("hipMalloc"), needed=("libc.so.6", "libamdhip64.so.7"))


@breaks("needed-not-allowed", "tag-untrue", says="libsurprise.so.1")
def unexpected_needed(made: MadeWheel) -> None:
    linked(made, needed=("libc.so.6", "libsurprise.so.1"))


@breaks("symbol-version-too-new", "tag-untrue", says="manylinux_2_34_x86_64")
def tag_too_old(made: MadeWheel) -> None:
    linked(made, TinySymbol("pthread_create", "libc.so.6", "GLIBC_2.34"))


@breaks("unversioned-symbol-too-new", "tag-untrue", says="std::filesystem")
def symbol_without_version(made: MadeWheel) -> None:
    linked(made, TinySymbol(CANONICAL), needed=("libc.so.6", "libstdc++.so.6"))


@breaks("unversioned-symbol-optional")
def weak_symbol_without_version(made: MadeWheel) -> None:
    linked(made, TinySymbol(CANONICAL, bind="WEAK"), needed=("libc.so.6", "libstdc++.so.6"))


@breaks("machine-foreign", "tag-untrue")
def other_machine(made: MadeWheel) -> None:
    linked(made, machine=183)


@breaks("isa-too-new", "tag-untrue")
def other_isa(made: MadeWheel) -> None:
    linked(made, isa_needed=4)


@breaks("libc-foreign", "tag-untrue", "needed-not-allowed")
def other_libc(made: MadeWheel) -> None:
    made.files[LIB] = library(TinySymbol("x"), fatbins=[fat_binary()], needed=("libc.musl-x86_64.so.1",))


@breaks("tag-mismatch")
def other_tag_in_wheel(made: MadeWheel) -> None:
    made.replace("Tag", "py3-none-manylinux_2_17_x86_64")


@breaks("tag-untrue", says="`any`")
def pure_tag(made: MadeWheel) -> None:
    made.platform = "any"
    made.replace("Tag", "py3-none-any")


@breaks("tag-unjudged")
def unknown_platform(made: MadeWheel) -> None:
    made.platform = "manylinux_2_999_x86_64"
    made.replace("Tag", "py3-none-manylinux_2_999_x86_64")


@breaks("tag-unjudged", says="auditwheel cannot read")
def symbols_without_strings(made: MadeWheel) -> None:
    made.files[LIB] = with_sections(made.files[LIB], (".symtab", 2, 0, bytes(600)))


@breaks("tag-too-new", says="manylinux_2_5_x86_64")
def modest_library(made: MadeWheel) -> None:
    made.files[LIB] = library(TinySymbol("malloc", "libc.so.6", "GLIBC_2.2.5"), fatbins=[fat_binary()])


@breaks("tag-too-new", says="linux_x86_64 promises nothing")
def plain_linux(made: MadeWheel) -> None:
    made.platform = "linux_x86_64"
    made.replace("Tag", "py3-none-linux_x86_64")


@breaks("tag-redundant", says="manylinux_2_34_x86_64")
def two_platforms(made: MadeWheel) -> None:
    made.platform = "manylinux_2_28_x86_64.manylinux_2_34_x86_64"
    made.replace("Tag", *(f"py3-none-{platform}" for platform in made.platform.split(".")))


@breaks("purelib-with-elf")
def purelib(made: MadeWheel) -> None:
    made.replace("Root-Is-Purelib", "true")


@breaks("bundle-damaged", says="MD5")
def wrong_md5(made: MadeWheel) -> None:
    good = fat_binary()
    coded(made, good, good[:24] + bytes(8) + good[32:])


@breaks("code-object-wrong", says="gfx1100")
def code_of_another_processor(made: MadeWheel) -> None:
    coded(made, fat_binary(), fat_binary(machs={"gfx950": MACHS["gfx1100"]}))


@breaks("bundle-damaged", says="0x123456")
def registered_elsewhere(made: MadeWheel) -> None:
    wrapper = struct.pack("<IIQQ", 0x48495046, 1, 0x123456, 0)
    made.files[LIB] = with_sections(made.files[LIB], (".hipFatBinSegment", 1, 3, wrapper))


@breaks("target-missing", says="gfx950")
def one_target_less(made: MadeWheel) -> None:
    coded(made, fat_binary(["gfx942"]))


@breaks("target-extra", "target-refused", says="gfx1100")
def one_target_more(made: MadeWheel) -> None:
    coded(made, fat_binary(["gfx942", "gfx950", "gfx1100"]))


@breaks("target-extra", says="gfx9-4-generic")
def generic_beside_exact(made: MadeWheel) -> None:
    coded(made, fat_binary(["gfx942", "gfx950", "gfx9-4-generic"]))


@breaks("target-refused", "target-extra", says="1 of 3 targets")
def refused_target(made: MadeWheel) -> None:
    coded(made, fat_binary(["gfx906", "gfx942", "gfx950"]))


@breaks("bundles-uneven", says="gfx950 in 1")
def uneven(made: MadeWheel) -> None:
    coded(made, fat_binary(), fat_binary(["gfx942"]))


@breaks("device-code-missing")
def no_device_code(made: MadeWheel) -> None:
    coded(made)


@breaks("metadata-unreadable", "metadata-mismatch", "requires-python-missing")
def metadata_is_not_text(made: MadeWheel) -> None:
    made.info["METADATA"] = b"Name: \xff"


@breaks("metadata-unreadable", "tag-mismatch")
def no_wheel_file(made: MadeWheel) -> None:
    made.archive = lambda data: data.replace(b"dist-info/WHEEL", b"dist-info/wheel")
    made.record = lambda rows: [[row[0].replace("/WHEEL", "/wheel"), *row[1:]] for row in rows]


@breaks("metadata-mismatch", says="Version 1.2.4")
def other_version(made: MadeWheel) -> None:
    made.replace("Version", "1.2.4")
    version = "jax_plugins/xla_rocm7/version.py"
    made.files[version] = made.files[version].replace(b"1.2.3", b"1.2.4")


@breaks("metadata-mismatch", says="Name jax-rocm8-pjrt")
def other_name(made: MadeWheel) -> None:
    made.replace("Name", "jax-rocm8-pjrt")


@breaks("metadata-mismatch", says="not a requirement")
def nonsense_requirement(made: MadeWheel) -> None:
    made.metadata.append("Requires-Dist: scipy >>> 1")


@breaks("summary-rocm-unknown")
def unknown_rocm(made: MadeWheel) -> None:
    made.replace("Summary", "JAX PJRT plugin (ROCm:unknown)")


@breaks("summary-rocm-wrong", says="7.0.2")
def wrong_rocm(made: MadeWheel) -> None:
    comment = b"AMD clang version 22.0.0git (llvm-project roc-7.0.2 26014)\0"
    made.files[LIB] = with_sections(made.files[LIB], (".comment", 1, 0, comment))


@breaks("requires-python-missing")
def any_python(made: MadeWheel) -> None:
    made.replace("Requires-Python")


@breaks("license-missing")
def no_licence(made: MadeWheel) -> None:
    del made.info["licenses/LICENSE.txt"]


def stamp(made: MadeWheel, value: str) -> None:
    made.files["jax_plugins/xla_rocm7/version.py"] = f"_release_version: str | None = {value}\n".encode()


@breaks("version-unstamped")
def unstamped(made: MadeWheel) -> None:
    stamp(made, "None")


@breaks("version-stale", says="1.2.3.post1")
def stale_stamp(made: MadeWheel) -> None:
    stamp(made, "'1.2.3.post1'")


@breaks("jaxlib-unpinned")
def any_jaxlib(made: MadeWheel) -> None:
    made.replace("Requires-Dist", 'jaxlib; extra == "cpu"')
    made.metadata.append("Provides-Extra: cpu")


@breaks("extra-uninstallable", says="2 distributions")
def dead_extra(made: MadeWheel) -> None:
    made.metadata += ["Provides-Extra: with-rocm"]
    made.metadata += [f'Requires-Dist: amd_{x}_instinct; extra == "with-rocm"' for x in ("rccl", "hipfft")]
    made.metadata += ['Requires-Dist: scipy; extra == "with-rocm"']


@breaks("entry-point-missing")
def not_discoverable(made: MadeWheel) -> None:
    del made.info["entry_points.txt"]


@breaks("entry-point-broken", says="jax_plugins.xla_rocm8")
def entry_point_elsewhere(made: MadeWheel) -> None:
    made.info["entry_points.txt"] = b"[jax_plugins]\nxla_rocm7 = jax_plugins.xla_rocm8:initialize [x]\n"


@breaks("entry-point-broken", "entry-point-missing", says="cannot be read")
def entry_points_without_group(made: MadeWheel) -> None:
    made.info["entry_points.txt"] = b"xla_rocm7 = jax_plugins.xla_rocm7\n"


@breaks("library-not-elf", says="12 bytes, no ELF")
def script_in_place_of_a_library(made: MadeWheel) -> None:
    made.files["jax_plugins/xla_rocm7/helper.so"] = b"#!/bin/sh\n:\n"


@breaks("library-not-elf", says="0 bytes, no ELF")
def empty_library(made: MadeWheel) -> None:
    made.files["jax_plugins/xla_rocm7/libhelper.so.1"] = b""


@breaks("pjrt-api-missing", says="no library exports GetPjrtApi")
def library_without_entry(made: MadeWheel) -> None:
    linked(made, entry=())


@breaks("exports-unexpected", says="1 symbols, such as _ZN4llvm4initEv")
def library_that_offers_too_much(made: MadeWheel) -> None:
    linked(made, TinySymbol("_ZN4llvm4initEv", defined=True))


@breaks("init-name-wrong", "python-tag-wrong", says="elsewhere")
def module_of_another_name(made: MadeWheel) -> None:
    linked(made, TinySymbol("PyInit_elsewhere", defined=True))


@pytest.mark.parametrize("case", BREAKS)
def test_inspect_broken_wheel_has_expected_findings(case: str, tmp_path: Path) -> None:
    spoil, expected, says = BREAKS[case]
    made = clean_pjrt()
    spoil(made)
    report = look(made, tmp_path)
    assert codes(report) == sorted(expected)
    assert says in " ".join(finding.message for finding in report.findings)
    assert [finding for finding in report.findings if not finding.remedy] == []
    assert len({(finding.code, finding.message) for finding in report.findings}) == len(report.findings)


# The table.


def test_every_finding_kind_has_a_test() -> None:
    files = ("test_findings.py", "test_inspect.py", "test_kernel_wheel.py")
    here = "".join((Path(__file__).parent / name).read_text() for name in files)
    elsewhere = {"symbol-not-allowed", "unversioned-symbol-unknown"}  # tests/unit/wheelkit/test_manylinux.py
    shown = {code for code in FINDING_KINDS if f'"{code}"' in here}
    assert sorted(FINDING_KINDS.keys() - shown - elsewhere) == []


def test_every_finding_code_is_in_the_table() -> None:
    made = {
        code
        for path in WHEEL_SOURCES.rglob("*.py")
        for code in re.findall(r'\b_?(?:finding|problem)\(\s*"([a-z0-9]+(?:-[a-z0-9]+)+)"', path.read_text())
    }
    assert len(made) > 40
    assert sorted(made - FINDING_KINDS.keys()) == []


def test_finding_kinds_remedies_are_one_line() -> None:
    assert [code for code, rule in FINDING_KINDS.items() if len(rule.remedy) > 90 or "\n" in rule.remedy] == []
    assert [code for code, rule in FINDING_KINDS.items() if not rule.remedy.endswith(".") or len(rule.title) > 45] == []


@pytest.mark.parametrize("name", ["hipMalloc", "__hipRegisterFatBinary", "hipGetDevicePropertiesR0600"])
def test_hip_runtime_matches_its_functions(name: str) -> None:
    assert HIP_RUNTIME.fullmatch(name)


@pytest.mark.parametrize("name", ["hipblasCreate", "hipsolverDnCreate", "chipMalloc", "hip", "hipfftPlan1d"])
def test_hip_runtime_does_not_match_other_libraries(name: str) -> None:
    assert not HIP_RUNTIME.fullmatch(name)


def test_code_objects_of_the_tests_are_valid() -> None:
    assert code_object(MACHS["gfx942"])[48:52] == b"\x4c\0\0\0"
