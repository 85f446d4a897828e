"""Offload bundles as bytes.

The container of every version, entry IDs, and the choice of targets.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.errors import FatbinError
from core.model import GfxTarget
from wheelkit.gpu import offload_bundle as bundle
from wheelkit.gpu.bundle_reader import BundleLocation, BundleReader
from wheelkit.gpu.offload_bundle import BundleEntry, CompressedHeader

HOST = "host-x86_64-unknown-linux-gnu-"
HIP = "hipv4-amdgcn-amd-amdhsa--"


def entries(*targets: str) -> list[BundleEntry]:
    hosts = [BundleEntry(id=HOST, offset=4096, size=0)]
    return hosts + [
        BundleEntry(id=HIP + t, offset=4096 * (n + 1), size=100)
        for n, t in enumerate(targets)
    ]


@pytest.mark.parametrize(
    ("version", "layout", "expected"),
    [
        (2, "<4sHHIIQ", 24),
        (3, "<4sHHQQQ", 32),
    ],
)
def test_compressed_header_of_each_version(
    version: int, layout: str, expected: int
) -> None:
    plain = bundle.build(
        [
            (HOST, b""),
            (HIP + "gfx942", b"code"),
        ]
    )
    packed = bundle.pack(plain, version=version)
    *head, stored, size, digest = struct.unpack_from(layout, packed)
    assert head == [b"CCOB", version, 1]
    assert stored == len(packed)
    assert size == len(plain)
    assert digest.to_bytes(8, "little") == hashlib.md5(plain).digest()[:8]
    assert CompressedHeader.parse(packed).header_size == expected
    assert (
        packed[expected : expected + 4] == b"\x28\xb5\x2f\xfd"
    )  # a zstd frame, RFC 8878


def decoded(packed: bytes, path: Path) -> bytes:
    """Return the uncompressed bundle, read and verified as in a library."""
    path.write_bytes(packed)
    header = CompressedHeader.parse(packed)
    size = min(header.file_size, len(packed))
    place = BundleLocation(
        label="x",
        index=0,
        offset=0,
        address=0,
        size=size,
        capacity=len(packed),
        packed=header,
    )
    with path.open("rb") as file:
        reader = BundleReader(file.fileno())
        assert (
            list(reader.fill(place, lambda entry: memoryview(b""), verify=True)) == []
        )
        return b"".join(map(bytes, reader.chunks(place)))


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    codes=st.lists(st.binary(max_size=300), max_size=4), version=st.sampled_from((2, 3))
)
def test_pack_and_read_round_trip(
    tmp_path: Path, codes: list[bytes], version: int
) -> None:
    plain = bundle.build(
        [(HIP + f"gfx{900 + n}", code) for n, code in enumerate(codes)], alignment=64
    )
    packed = bundle.pack(plain, version=version)
    assert decoded(packed, tmp_path / "bundle") == plain
    assert bundle.pack(plain, version=version) == packed
    found = [
        plain[e.offset : e.offset + e.size]
        for e in bundle.parse_entries(plain, len(plain))
    ]
    assert found == codes


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"CCOB\x01\x00" + bytes(40), "known compressed bundle header"),
        (
            struct.pack(
                "<4sHHQQQ",
                b"CCOB",
                3,
                7,
                100,
                10,
                0,
            ),
            "method 7",
        ),
        (
            struct.pack(
                "<4sHHQQQ",
                b"CCOB",
                3,
                1,
                32,
                10,
                0,
            ),
            "impossible sizes",
        ),
    ],
)
def test_compressed_header_refuses_unknown_formats(data: bytes, message: str) -> None:
    with pytest.raises(FatbinError, match=message):
        CompressedHeader.parse(data)


def table(*rows: tuple[int, int, str]) -> bytes:
    body = b"".join(
        struct.pack("<QQQ", offset, size, len(name)) + name.encode()
        for offset, size, name in rows
    )
    return bundle.PLAIN_MAGIC + struct.pack("<Q", len(rows)) + body


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"__CLANG_OFFLOAD_BUNDLe__" + bytes(8), "magic"),
        (bundle.PLAIN_MAGIC + struct.pack("<Q", 1 << 60), "does not end"),
        (table((64, 4, "x" * 8))[:-3], "damaged"),
        (table((64, 4, "gfx\xe9")), "damaged"),
        (table((500, 600, "a")), "a overlaps another entry or lies outside the bundle"),
        (table((10, 4, "a")), "a overlaps"),
    ],
)
def test_parse_entries_refuses_damaged_tables(head: bytes, message: str) -> None:
    with pytest.raises(FatbinError, match=message):
        bundle.parse_entries(head, 1000)


@pytest.mark.parametrize(
    ("entry_id", "target"),
    [
        ("hipv4-amdgcn-amd-amdhsa--gfx942", "gfx942"),
        ("hipv4-amdgcn-amd-amdhsa--gfx90a:xnack-:sramecc+", "gfx90a:sramecc+:xnack-"),
        ("hip-amdgcn-amd-amdhsa-gfx906", "gfx906"),
        ("hipv4-amdgcn-amd-amdhsa-unknown-gfx1250", "gfx1250"),
        ("openmp-amdgcn-amd-amdhsa--gfx908", None),
        (HOST, None),
        ("hipv4-amdgcn-amd-amdhsa--gfx942:fast+", None),
    ],
)
def test_bundle_entry_target_of_each_id(entry_id: str, target: str | None) -> None:
    entry = BundleEntry(id=entry_id, offset=0, size=1)
    assert entry.target == (GfxTarget.parse(target) if target else None)
    assert entry.name == (target or entry_id)
    assert entry.is_host is entry_id.startswith("host")


VARIANTS = (
    "gfx90a",
    "gfx90a:sramecc+:xnack-",
    "gfx90a:xnack+",
    "gfx942",
    "gfx9-4-generic",
    "gfx11-generic",
)


@pytest.mark.parametrize(
    ("wanted", "kept", "missing"),
    [
        ("gfx90a", "gfx90a gfx90a:sramecc+:xnack- gfx90a:xnack+", ""),
        ("gfx90a:xnack-", "gfx90a gfx90a:sramecc+:xnack-", ""),
        ("gfx942 gfx950", "gfx942 gfx9-4-generic", ""),
        ("gfx9-4-generic", "gfx9-4-generic", ""),
        ("gfx1030 gfx942 gfx906", "gfx942", "gfx1030 gfx906"),
        ("", "", ""),
    ],
)
def test_select_entries_for_wanted_targets(
    wanted: str, kept: str, missing: str
) -> None:
    chosen = bundle.select_entries(
        entries(*VARIANTS), [GfxTarget.parse(text) for text in wanted.split()]
    )
    assert [e.name for e in chosen.kept] == [HOST, *kept.split()]
    assert " ".join(map(str, chosen.missing)) == missing
    assert len(chosen.kept) + len(chosen.dropped) == len(VARIANTS) + 1
