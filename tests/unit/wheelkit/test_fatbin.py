"""Fat binaries in a library: finding, verifying and slimming bundles of every format."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from core.errors import FatbinError
from core.model import GfxTarget
from tests.support.host_code import HostCode, kernel_bundle, unpacked_bundle
from tests.support.made_wheel import GLIBC, MACHS, code_object, library, with_sections
from wheelkit.elf.snapshot import Elf
from wheelkit.gpu import offload_bundle as bundle
from wheelkit.gpu import slim as slimming
from wheelkit.gpu.bundle_reader import find_bundles
from wheelkit.gpu.fatbin import read_targets
from wheelkit.gpu.registration import bundle_pointers, registered_kernels
from wheelkit.gpu.slim import slim

HIP = "hipv4-amdgcn-amd-amdhsa--"
PLAIN = 0
TARGETS = ("gfx906", "gfx942", "gfx950", "gfx1100")
every_format = pytest.mark.parametrize("layout", [PLAIN, 2, 3])
"""No compression, or the version of the compressed bundle."""


def codes(targets: Sequence[str] = TARGETS, salt: str = "") -> dict[str, bytes]:
    """Return code objects that differ from each other and compress badly."""
    out = {}
    for target in targets:
        noise = b""
        for number in range(200):
            text = f"{target}{salt}{number}"
            noise += hashlib.sha256(text.encode()).digest()
        # 0x500: xnack and sramecc may be on or off.
        out[target] = code_object(MACHS[target] | 0x500) + noise
    return out


def fat(parts: Mapping[str, bytes], layout: int = 3) -> bytes:
    entries = [("host-x86_64-unknown-linux-gnu-", b"")]
    for target, code in parts.items():
        entries.append((HIP + target, code))
    plain = bundle.build(entries)
    data = bundle.pack(plain, version=layout) if layout else plain
    return data + bytes(-len(data) % 4096)


def write(path: Path, *fatbins: bytes) -> Path:
    path.write_bytes(library(GLIBC, fatbins=fatbins))
    return path


def gfx(*names: str) -> list[GfxTarget]:
    return [GfxTarget.parse(name) for name in names]


def held(path: Path) -> list[dict[str, bytes]]:
    """Return the code of each bundle by target, decoded independently of the tested streams."""
    out = []
    data = path.read_bytes()
    for at in find_bundles(path):
        plain = unpacked_bundle(data[at.offset : at.offset + at.size])
        code = {}
        for entry in bundle.parse_entries(plain, len(plain)):
            if not entry.is_host:
                end = entry.offset + entry.size
                code[entry.name] = plain[entry.offset : end]
        out.append(code)
    return out


def two_bundles(folder: Path, layout: int = 3) -> Path:
    """Return a library with two bundles of all targets, whose code differs."""
    first = fat(codes(), layout)
    second = fat(codes(salt="2"), layout)
    return write(folder / "lib.so", first, second)


@every_format
def test_read_targets_counts_targets(tmp_path: Path, layout: int) -> None:
    second = fat(codes(TARGETS[:2]), layout)
    path = write(tmp_path / "lib.so", fat(codes(), layout), second)
    report = read_targets(path, verify=True)
    size = len(codes()["gfx942"])
    assert report.findings == ()
    assert [(t.target, t.code_bytes, t.bundles) for t in report.device.targets] == [
        ("gfx1100", size, 1),
        ("gfx906", 2 * size, 2),
        ("gfx942", 2 * size, 2),
        ("gfx950", size, 1),
    ]
    assert report.device.formats == (f"CCOB v{layout} zstd" if layout else "plain",)
    assert report.device.stored == sum(b.size for b in report.bundles)


@every_format
def test_slim_keeps_wanted_code_at_its_address(tmp_path: Path, layout: int) -> None:
    path = two_bundles(tmp_path, layout)
    old = path.read_bytes()
    before = find_bundles(path)
    report = slim(path, gfx("gfx950", "gfx906"))
    after = find_bundles(path)
    assert [b.address for b in after] == [b.address for b in before]
    assert [b.packed.version if b.packed else PLAIN for b in after] == [layout] * 2
    kept = ("gfx906", "gfx950")
    assert held(path) == [codes(kept), codes(kept, "2")]
    assert report.targets_kept == kept
    assert report.targets_dropped == ("gfx1100", "gfx942")
    assert report.stored_before == sum(bundle.size for bundle in before)
    assert report.stored_after == sum(bundle.size for bundle in after)
    assert report.stored_after < 0.6 * report.stored_before
    assert read_targets(path, verify=True).findings == ()
    new = bytearray(path.read_bytes())
    assert len(new) == len(old)
    for start, end in report.changed:
        new[start:end] = old[start:end]
    assert bytes(new) == old


def test_slim_is_reproducible_and_idempotent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slimmed = []
    for threads in (1, 3):
        monkeypatch.setattr(slimming, "THREADS", threads)
        path = two_bundles(tmp_path)
        assert slim(path, gfx("gfx942")).changed
        slimmed.append(path.read_bytes())
    assert slimmed[0] == slimmed[1]
    again = slim(path, gfx("gfx942"))
    assert again.changed == ()
    assert again.targets_dropped == ()
    assert again.stored_before == again.stored_after
    assert path.read_bytes() == slimmed[1]


@pytest.mark.parametrize("fits", [True, False])
def test_slim_large_bundle_is_packed_tighter_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fits: bool
) -> None:
    path = write(tmp_path / "lib.so", fat(codes()))
    old = path.read_bytes()
    levels = []

    def pack(plain: bytes, *, version: int, level: int) -> bytes:
        levels.append(level)
        real = bundle.pack(plain, version=version)
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
    exact = codes(("gfx942", "gfx9-4-generic"))
    generic = codes(("gfx9-4-generic", "gfx906"))
    path = write(tmp_path / "lib.so", fat(exact), fat(generic))
    report = slim(path, gfx("gfx942"))
    assert [list(found) for found in held(path)] == [["gfx942"], ["gfx9-4-generic"]]
    assert report.targets_kept == ("gfx9-4-generic", "gfx942")
    assert report.targets_dropped == ("gfx906",)


def test_slim_missing_target_is_reported_without_changes(tmp_path: Path) -> None:
    path = write(tmp_path / "lib.so", fat(codes()), fat(codes(("gfx906", "gfx942"))))
    old = path.read_bytes()
    with pytest.raises(FatbinError) as caught:
        slim(path, gfx("gfx942", "gfx950"), name="jax/plugin.so")
    assert "jax/plugin.so has no code for gfx950 in 1 of 2" in str(caught.value)
    assert path.read_bytes() == old


@pytest.mark.parametrize("place", ["size", "checksum", "content"])
def test_slim_refuses_damaged_bundle(tmp_path: Path, place: str) -> None:
    path = two_bundles(tmp_path)
    second = find_bundles(path)[1]
    data = bytearray(path.read_bytes())
    places = {
        "size": 16,
        "checksum": 24,
        "content": second.size // 2,
    }
    data[second.offset + places[place]] ^= 1
    path.write_bytes(data)
    old = path.read_bytes()
    report = read_targets(path, verify=True, whole=True, name="jax/plugin.so")
    (found,) = report.entry_findings
    assert found.code == "bundle-damaged"
    assert found.member == "jax/plugin.so"
    assert f"bundle 1 at byte {second.offset:#x}" in found.message
    assert [bool(kernels) for kernels in report.kernels.values()] == [True, False]
    with pytest.raises(FatbinError, match=f"bundle 1 at byte {second.offset:#x}"):
        slim(path, gfx("gfx942"))
    with pytest.raises(FatbinError, match="bundle 1"):
        slim(path, gfx(*TARGETS))  # checked although there is nothing to drop
    assert path.read_bytes() == old


@pytest.mark.parametrize(
    "last", [b"no bundle".ljust(4096, b"\0"), fat(codes())[:4096]], ids=["other", "cut"]
)
def test_read_targets_reports_damage_after_bundle(tmp_path: Path, last: bytes) -> None:
    path = write(tmp_path / "lib.so", fat(codes()), last)
    place = path.read_bytes().rindex(last)
    with pytest.raises(FatbinError, match=f"{place:#x}"):
        slim(path, gfx("gfx942"))
    report = read_targets(path, name="plugin.so")
    assert [b.index for b in report.bundles] == [0]
    assert [f.code for f in report.findings] == ["bundle-damaged"]
    assert f"bundle 1 is damaged, at byte {place:#x}" in report.findings[0].message
    assert {t.bundles for t in report.device.targets} == {1}


def registering(
    path: Path, fatbins: Sequence[bytes], shift: int = 0, relocated: bool = True
) -> Path:
    """Return a library whose wrappers point to its bundles.

    The last pointer is off by `shift` bytes.
    """
    path.write_bytes(library(GLIBC, fatbins=fatbins))
    addresses = [bundle.address for bundle in find_bundles(path)]
    addresses[-1] += shift
    wrappers = b""
    for address in addresses:
        pointer = 0 if relocated else address
        wrappers += struct.pack("<IIQQ", 0x48495046, 1, pointer, 0)
    segment = (".hipFatBinSegment", 1, 3, wrappers)
    data = with_sections(path.read_bytes(), segment)
    path.write_bytes(data)
    if relocated:
        base = Elf.read(path).sections[".hipFatBinSegment"].address
        rows = b""
        for number, address in enumerate(addresses):
            place = base + 24 * number + 8
            rows += struct.pack("<QQq", place, 8, address)
        path.write_bytes(with_sections(data, (".rela.dyn", 4, 2, rows)))
    return path


@pytest.mark.parametrize("relocated", [True, False])
def test_bundle_pointers_match_bundle_addresses(
    tmp_path: Path, relocated: bool
) -> None:
    fatbins = [fat(codes()), fat(codes())]
    path = registering(tmp_path / "lib.so", fatbins, relocated=relocated)
    addresses = tuple(bundle.address for bundle in find_bundles(path))
    assert bundle_pointers(path) == addresses
    slim(path, gfx("gfx942"))
    assert bundle_pointers(path) == addresses
    assert read_targets(path, verify=True).findings == ()


@pytest.mark.parametrize("helper", [False, True])
@pytest.mark.parametrize("guarded", [False, True])
def test_registered_kernels_of_each_constructor_form(
    tmp_path: Path, helper: bool, guarded: bool
) -> None:
    names: tuple[list[str], ...] = (
        ["_Z3addv", "_Z3mulv"],
        [],
        ["_Z3addv", *(f"_Z6kernel{n}v" for n in range(100))],
    )
    fatbins = [kernel_bundle({"gfx942": listed}) for listed in names]
    path = tmp_path / "lib.so"
    host = HostCode(names, helper=helper, guarded=guarded)
    path.write_bytes(host.library(tmp_path, fatbins))
    addresses = [bundle.address for bundle in find_bundles(path)]
    registered = registered_kernels(path)
    found = {item.address: item.kernels for item in registered}
    assert found == dict(zip(addresses, map(set, names), strict=True))
    assert {item.unread for item in registered} == {0}
    kernels = read_targets(path, verify=True, whole=True).kernels
    assert found == {address: held["gfx942"] for address, held in kernels.items()}
