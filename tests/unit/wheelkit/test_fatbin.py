"""Fat binaries in a library: finding, verifying and slimming bundles of every format."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from core.errors import FatbinError
from core.model import GfxTarget
from tests.support.host_code import HostCode, kernel_bundle, unpacked_bundle
from tests.support.made_wheel import GLIBC, MACHS, code_object, library, with_sections
from tests.support.whole_code import whole_code
from wheelkit.elf import constants
from wheelkit.elf.reader import ElfImage
from wheelkit.elf.snapshot import Elf
from wheelkit.gpu import bundle
from wheelkit.gpu import slim as slimming
from wheelkit.gpu.bundle_reader import find_bundles
from wheelkit.gpu.fatbin import read_targets
from wheelkit.gpu.launch_stub import name_problems, stub_problems
from wheelkit.gpu.registration import bundle_pointers, registered_kernels
from wheelkit.gpu.slim import slim

HIP = "hipv4-amdgcn-amd-amdhsa--"
PLAIN = (0, 0)
FORMATS = [PLAIN, *((version, method) for version in (1, 2, 3) for method in (bundle.ZLIB, bundle.ZSTD))]
NAMES = ["plain", "v1-zlib", "v1-zstd", "v2-zlib", "v2-zstd", "v3-zlib", "v3-zstd"]
TARGETS = ("gfx906", "gfx942", "gfx950", "gfx1100")
every_format = pytest.mark.parametrize("layout", FORMATS, ids=NAMES)


def codes(targets: Sequence[str] = TARGETS, salt: str = "") -> dict[str, bytes]:
    """Return code objects that differ from each other and compress badly."""
    out = {}
    for target in targets:
        noise = b"".join(hashlib.sha256(f"{target}{salt}{n}".encode()).digest() for n in range(200))
        features = {"": 0x500, "+": 0xF00, "-": 0xA00}[target[-1] if ":" in target else ""]
        out[target] = code_object(MACHS[target.split(":")[0]] | features) + noise
    return out


def fat(parts: Mapping[str, bytes], layout: tuple[int, int] = (3, bundle.ZSTD)) -> bytes:
    plain = bundle.build([("host-x86_64-unknown-linux-gnu-", b""), *((HIP + t, code) for t, code in parts.items())])
    data = plain if layout == PLAIN else bundle.pack(plain, version=layout[0], method=layout[1])
    return data + bytes(-len(data) % 4096)


def write(path: Path, *fatbins: bytes) -> Path:
    path.write_bytes(library(GLIBC, fatbins=fatbins))
    return path


def gfx(*names: str) -> list[GfxTarget]:
    return [GfxTarget.parse(name) for name in names]


def held(path: Path) -> list[dict[str, bytes]]:
    """Return the code of each bundle by target, decoded independently of the tested streams."""
    out = []
    for at in find_bundles(path):
        plain = unpacked_bundle(path.read_bytes()[at.offset : at.offset + at.size])
        found = bundle.parse_entries(plain, len(plain))
        out.append({e.name: plain[e.offset : e.offset + e.size] for e in found if not e.is_host})
    return out


@every_format
@pytest.mark.parametrize("verify", [True, False])
def test_read_targets_counts_targets(tmp_path: Path, layout: tuple[int, int], verify: bool) -> None:
    path = write(tmp_path / "lib.so", fat(codes(), layout), fat(codes(TARGETS[:2]), layout))
    report = read_targets(path, verify=verify, machs=MACHS)
    size = len(codes()["gfx942"])
    assert report.findings == ()
    assert [(t.target, t.code_bytes, t.bundles) for t in report.device.targets] == [
        ("gfx1100", size, 1), ("gfx906", 2 * size, 2), ("gfx942", 2 * size, 2), ("gfx950", size, 1),
    ]  # fmt: skip
    assert report.device.formats == ({"plain": "plain"}.get(name := NAMES[FORMATS.index(layout)], _title(name)),)
    assert report.device.stored == sum(b.size for b in report.bundles)


def _title(name: str) -> str:
    return "CCOB " + name.replace("-", " ")


@every_format
@pytest.mark.parametrize("verify", [True, False])
def test_slim_keeps_wanted_code_at_its_address(tmp_path: Path, layout: tuple[int, int], verify: bool) -> None:
    path = write(tmp_path / "lib.so", fat(codes(), layout), fat(codes(salt="2"), layout))
    old, before = path.read_bytes(), find_bundles(path)
    report = slim(path, gfx("gfx950", "gfx906"), verify=verify)
    after = find_bundles(path)
    assert [b.address for b in after] == [b.address for b in before]
    assert [(b.packed.version, b.packed.method) if b.packed else PLAIN for b in after] == [layout] * 2
    wanted = [{t: c for t, c in codes(salt=s).items() if t in ("gfx906", "gfx950")} for s in ("", "2")]
    assert held(path) == wanted
    assert (report.targets_kept, report.targets_dropped) == (("gfx906", "gfx950"), ("gfx1100", "gfx942"))
    assert (report.stored_before, report.stored_after) == tuple(sum(b.size for b in bs) for bs in (before, after))
    assert sum(b.content_size for b in after) < sum(b.content_size for b in before)
    assert report.stored_after < 0.6 * report.stored_before
    assert read_targets(path, verify=True, machs=MACHS).findings == ()
    new = bytearray(path.read_bytes())
    assert len(new) == len(old)
    for bundle_now, bundle_then in zip(after, before, strict=True):
        end = bundle_now.offset + bundle_now.size
        assert not any(new[end : bundle_then.offset + bundle_then.capacity])
    for start, end in report.changed:
        new[start:end] = old[start:end]
    assert bytes(new) == old


@every_format
def test_slim_is_reproducible_and_idempotent(
    tmp_path: Path, layout: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [write(tmp_path / f"{n}.so", fat(codes(), layout), fat(codes(salt="2"), layout)) for n in (1, 2)]
    for path, threads in zip(paths, (1, 3), strict=True):
        monkeypatch.setattr(slimming, "THREADS", threads)
        assert slim(path, gfx("gfx942")).changed
    assert paths[0].read_bytes() == paths[1].read_bytes()
    again = slim(paths[0], gfx("gfx942"))
    assert (again.changed, again.targets_dropped, again.stored_before) == ((), (), again.stored_after)
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize("fits", [True, False])
def test_slim_large_bundle_is_packed_tighter_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fits: bool
) -> None:
    path = write(tmp_path / "lib.so", fat(codes()))
    old, levels = path.read_bytes(), []

    def pack(plain: bytes, *, version: int, method: int, level: int) -> bytes:
        levels.append(level)
        real = bundle.pack(plain, version=version, method=method)
        return real if level == bundle.LEVEL_TIGHT and fits else bytes(1 << 20)

    monkeypatch.setattr(slimming, "pack", pack)
    if fits:
        slim(path, gfx("gfx942"))
        assert held(path) == [{"gfx942": codes()["gfx942"]}]
    else:
        with pytest.raises(FatbinError, match=r"bundle 0 at byte .* do not fit"):
            slim(path, gfx("gfx942"))
        assert path.read_bytes() == old
    assert levels == [bundle.LEVEL, bundle.LEVEL_TIGHT]


def test_slim_keeps_generic_code_only_where_needed(tmp_path: Path) -> None:
    covers = {"gfx9-4-generic": ("gfx942", "gfx950")}
    exact, generic = codes(("gfx942", "gfx9-4-generic")), codes(("gfx9-4-generic", "gfx906"))
    path = write(tmp_path / "lib.so", fat(exact), fat(generic))
    report = slim(path, gfx("gfx942"), covers=covers)
    assert [list(found) for found in held(path)] == [["gfx942"], ["gfx9-4-generic"]]
    assert (report.targets_kept, report.targets_dropped) == (("gfx9-4-generic", "gfx942"), ("gfx906",))


def test_slim_keeps_feature_variants_together(tmp_path: Path) -> None:
    parts = codes(("gfx942:xnack+:sramecc+", "gfx942:xnack-:sramecc-", "gfx906"))
    path = write(tmp_path / "lib.so", fat(parts))
    assert read_targets(path, verify=True, machs=MACHS).findings == ()
    slim(path, gfx("gfx942"))
    assert list(held(path)[0]) == ["gfx942:sramecc+:xnack+", "gfx942:sramecc-:xnack-"]
    slim(path, gfx("gfx942:xnack-"))
    assert list(held(path)[0]) == ["gfx942:sramecc-:xnack-"]


def test_slim_missing_target_is_reported_without_changes(tmp_path: Path) -> None:
    path = write(tmp_path / "lib.so", fat(codes()), fat(codes(("gfx906", "gfx942"))))
    old = path.read_bytes()
    with pytest.raises(FatbinError) as caught:
        slim(path, gfx("gfx942", "gfx950"), name="jax/plugin.so")
    offset = find_bundles(path)[1].offset
    assert f"jax/plugin.so: bundle 1 at byte {offset:#x} has no code for gfx950." in str(caught.value)
    assert "bundle 0" not in str(caught.value)
    assert path.read_bytes() == old


def damage(path: Path, offset: int, flip: int = 0xFF) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= flip
    path.write_bytes(data)


@pytest.mark.parametrize("place", ["checksum", "content"])
def test_slim_refuses_damaged_bundle(tmp_path: Path, place: str) -> None:
    path = write(tmp_path / "lib.so", fat(codes()), fat(codes(salt="2")))
    second = find_bundles(path)[1]
    damage(path, second.offset + (24 if place == "checksum" else second.size // 2))
    old = path.read_bytes()
    (found,) = read_targets(path, verify=True, name="jax/plugin.so").findings
    assert (found.code, found.member) == ("bundle-damaged", "jax/plugin.so")
    assert f"bundle 1 at byte {second.offset:#x}" in found.message
    with pytest.raises(FatbinError, match=f"bundle 1 at byte {second.offset:#x}"):
        slim(path, gfx("gfx942"))
    with pytest.raises(FatbinError, match="bundle 1"):
        slim(path, gfx(*TARGETS))  # checked although there is nothing to drop
    assert path.read_bytes() == old


def test_read_targets_names_each_damaged_bundle(tmp_path: Path) -> None:
    large = {target: code + bytes(200_000) for target, code in codes().items()}  # more than is read for the entries
    longer = bytearray(fat(large))
    struct.pack_into("<Q", longer, 16, struct.unpack_from("<Q", longer, 16)[0] + 1)
    longer[24] ^= 1  # of two problems, the first is named
    path = write(tmp_path / "lib.so", fat(large), fat(large), bytes(longer), fat(large), fat(large))
    bundles = find_bundles(path)
    damage(path, bundles[1].offset + 24)
    damage(path, bundles[4].offset + 24)
    report = read_targets(path, verify=True, whole=True)
    damaged = [f.message for f in report.findings if f.code == "bundle-damaged"]
    problems = {1: "the content does not match", 2: "the uncompressed size is not", 4: "the content does not match"}
    for message, (number, problem) in zip(damaged, problems.items(), strict=True):
        assert f"bundle {number} at" in message
        assert problem in message
    assert [bool(report.kernels[bundle.address]) for bundle in bundles] == [True, False, False, True, False]
    with pytest.raises(FatbinError, match=r"bundle [124] at"):
        slim(path, gfx("gfx942"))


def test_read_targets_reports_garbage_after_bundle(tmp_path: Path) -> None:
    path = write(tmp_path / "lib.so", fat(codes()), b"no bundle".ljust(4096, b"\0"), fat(codes()))
    place = find_bundles_until_error(path)
    report = read_targets(path, name="plugin.so")
    assert [b.index for b in report.bundles] == [0]
    assert [f.code for f in report.findings] == ["bundle-damaged"]
    assert f"bundle 1 is damaged, at byte {place:#x}" in report.findings[0].message
    assert {t.bundles for t in report.device.targets} == {1}
    with pytest.raises(FatbinError):
        slim(path, gfx("gfx942"))


def find_bundles_until_error(path: Path) -> int:
    with pytest.raises(FatbinError) as caught:
        find_bundles(path)
    place = path.read_bytes().index(b"no bundle")
    assert f"{place:#x}" in caught.value.message
    return place


def test_read_targets_refuses_entries_outside_bundle(tmp_path: Path) -> None:
    plain = bytearray(bundle.build([(HIP + t, c) for t, c in codes().items()]))
    struct.pack_into("<Q", plain, 32, 1 << 40)
    path = write(tmp_path / "lib.so", bundle.pack(plain))
    with pytest.raises(FatbinError, match="overlaps another entry or lies outside the bundle"):
        slim(path, gfx("gfx942"))


def registering(path: Path, fatbins: Sequence[bytes], shift: int = 0, relocated: bool = True) -> Path:
    """Return a library whose wrappers point to its bundles; the last pointer is off by `shift` bytes."""
    path.write_bytes(library(GLIBC, fatbins=fatbins))
    addresses = [bundle.address for bundle in find_bundles(path)]
    addresses[-1] += shift
    wrappers = [struct.pack("<IIQQ", 0x48495046, 1, 0 if relocated else a, 0) for a in addresses]
    data = with_sections(path.read_bytes(), (".hipFatBinSegment", 1, 3, b"".join(wrappers)))
    path.write_bytes(data)
    if relocated:
        base = Elf.read(path).sections[".hipFatBinSegment"].address
        rows = [struct.pack("<QQq", base + 24 * n + 8, 8, address) for n, address in enumerate(addresses)]
        path.write_bytes(with_sections(data, (".rela.dyn", 4, 2, b"".join(rows))))
    return path


@pytest.mark.parametrize("relocated", [True, False])
def test_bundle_pointers_match_bundle_addresses(tmp_path: Path, relocated: bool) -> None:
    path = registering(tmp_path / "lib.so", [fat(codes()), fat(codes())], relocated=relocated)
    assert bundle_pointers(path) == tuple(b.address for b in find_bundles(path))
    slim(path, gfx("gfx942"))
    assert bundle_pointers(path) == tuple(b.address for b in find_bundles(path))
    assert read_targets(path, verify=True).findings == ()


@pytest.mark.parametrize("kind", ["openmp", "cuda"])
def test_read_targets_reports_entry_that_hip_skips(tmp_path: Path, kind: str) -> None:
    """clang's OpenMP code has the same target, but HIP never loads it."""
    parts = [("host-x86_64-unknown-linux--", b""), (f"{kind}-amdgcn-amd-amdhsa--gfx942", whole_code())]
    path = write(tmp_path / "lib.so", bundle.pack(bundle.build(parts)))
    report = read_targets(path, verify=True, machs=MACHS)
    assert [(item.code, "gfx942" in item.message) for item in report.findings] == [("bundle-entry-unknown", True)]
    assert [code.target for code in report.device.targets] == [f"{kind}-amdgcn-amd-amdhsa--gfx942"]
    with pytest.raises(FatbinError, match="no code for gfx942"):
        slim(path, gfx("gfx942"))


@pytest.mark.parametrize("helper", [False, True])
@pytest.mark.parametrize("guarded", [False, True])
def test_registered_kernels_of_each_constructor_form(tmp_path: Path, helper: bool, guarded: bool) -> None:
    names: tuple[list[str], ...] = (["_Z3addv", "_Z3mulv"], [], ["_Z3addv", *(f"_Z6kernel{n}v" for n in range(100))])
    fatbins = [kernel_bundle({"gfx942": listed}) for listed in names]
    path = tmp_path / "lib.so"
    path.write_bytes(HostCode(names, helper=helper, guarded=guarded).library(tmp_path, fatbins))
    addresses = [bundle.address for bundle in find_bundles(path)]
    found = {item.address: item.kernels for item in registered_kernels(path)}
    assert found == {address: set(listed) for address, listed in zip(addresses, names, strict=True)}
    assert {item.unread for item in registered_kernels(path)} == {0}
    kernels = read_targets(path, verify=True, whole=True, machs=MACHS).kernels
    assert found == {address: held["gfx942"] for address, held in kernels.items()}


def test_registered_kernels_counts_unreadable_registrations(tmp_path: Path) -> None:
    fatbins = [kernel_bundle({"gfx942": ["_Z3addv"]})] * 2
    path = tmp_path / "lib.so"
    path.write_bytes(HostCode([["_Z3addv"], []], nameless=2, silent=[1]).library(tmp_path, fatbins))
    assert len(bundle_pointers(path)) == 2
    (found,) = registered_kernels(path)
    assert (found.address, sorted(found.kernels), found.unread) == (find_bundles(path)[0].address, ["_Z3addv"], 2)


def launching(folder: Path, **changes: Any) -> tuple[Path, Mapping[int, Mapping[str, int]]]:
    """Write a library whose host code launches two kernels, and return it with the kernels' numbers of arguments."""
    names = ["_Z3addv", "_Z3mulv"]
    host = HostCode(**{"names": [names], "arguments": {"_Z3addv": 3, "_Z3mulv": 4}} | changes)
    path = folder / "a.so"
    path.write_bytes(host.library(folder, [kernel_bundle({"gfx942": names})]))
    return path, {find_bundles(path)[0].address: {"_Z3addv": 3, "_Z3mulv": 4}}


@pytest.mark.parametrize("helper", [False, True])
def test_stub_problems_accepts_kernels_with_own_handles(tmp_path: Path, helper: bool) -> None:
    path, arguments = launching(tmp_path, helper=helper)
    (found,) = registered_kernels(path)
    assert len(set(found.handles.values())) == 2
    assert list(stub_problems(path, [found], arguments)) == []
    assert found.repeated == frozenset()


def test_stub_problems_reports_exchanged_kernels(tmp_path: Path) -> None:
    path, arguments = launching(tmp_path, handles={"_Z3addv": "_Z3mulv", "_Z3mulv": "_Z3addv"})
    assert list(stub_problems(path, registered_kernels(path), arguments)) == [
        "launches kernel _Z3addv with 4 arguments, but it has 3",
        "launches kernel _Z3mulv with 3 arguments, but it has 4",
    ]


@pytest.mark.parametrize("shift", [8, 1 << 30])
def test_stub_problems_reports_handle_with_another_function(tmp_path: Path, shift: int) -> None:
    path, arguments = launching(tmp_path)
    handles = registered_kernels(path)[0].handles
    data = bytearray(path.read_bytes())
    table = ElfImage.parse(bytes(data), "library").section(".rela.dyn")
    assert table is not None
    rows = {constants.RELA.unpack_from(data, table.offset + at)[0]: at for at in range(0, table.size, 24)}
    first, second = (table.offset + rows[handles[name]] for name in ("_Z3addv", "_Z3mulv"))
    place, info, addend = constants.RELA.unpack_from(data, first)
    other = constants.RELA.unpack_from(data, second)[2] if shift == 8 else addend + shift
    constants.RELA.pack_into(data, first, place, info, other)
    path.write_bytes(data)
    (text,) = stub_problems(path, registered_kernels(path), arguments)
    assert text.startswith("registers kernel _Z3addv for ")
    assert ("whose function launches" if shift == 8 else "where no function is") in text


def test_name_problems_compares_names_of_handles(tmp_path: Path) -> None:
    path, _ = launching(tmp_path)
    registered = registered_kernels(path)
    (one, first), (two, second) = registered[0].handles.items()
    for exchanged in (False, True):
        names = (two, one) if exchanged else (one, two)
        strings = b"\0" + b"".join(name.encode() + b"\0" for name in names)
        symbols = bytes(24) + b"".join(
            struct.pack("<IBBHQQ", strings.index(name.encode()), 1, 0, 1, address, 8)
            for name, address in zip(names, (first, second), strict=True)
        )
        debug = tmp_path / "a.so.debug"
        debug.write_bytes(with_sections(path.read_bytes(), (".symtab", 2, 0, symbols), (".strtab", 3, 0, strings)))
        expected = [
            f"registers kernel {one} for the handle of {two}",
            f"registers kernel {two} for the handle of {one}",
        ]
        assert list(name_problems(debug, registered)) == (expected if exchanged else [])
