"""Fat binaries of published libraries: contents, and slimming that keeps every wanted byte."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest
import zstandard

from core.model import GfxTarget
from tests.support.real_libraries import unpacked
from wheelkit.elf.snapshot import Elf
from wheelkit.gpu.bundle_reader import find_bundles
from wheelkit.gpu.fatbin import read_targets
from wheelkit.gpu.registration import bundle_pointers, registered_kernels

ROOT = Path(__file__).parents[3]
WANTED = ("gfx942", "gfx950")
_NUMBERS = (
    "1010 1011 1012 1030 1031 1032 1033 1034 1035 1036 1100 1101 1102 1103 1150 1151"
    " 1152 1153 1200 1201"
)
ALL_0_10_2 = [
    f"gfx{n}" for n in re.findall(r"\w+", f"{_NUMBERS} 900 906 908 90a 90c 942 950")
]
_CODE = re.compile(rb"[^\0]")

SLIM = """
import json, sys, time
from pathlib import Path
from core.model import GfxTarget, to_json
from wheelkit.gpu.slim import slim
report = slim(Path(sys.argv[1]), [GfxTarget.parse(name) for name in sys.argv[2:]])
peak = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) >> 10
print(json.dumps({"peak": peak, **to_json(report)}))
"""


@pytest.fixture(scope="module")
def pjrt(
    real_wheel: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """Return the largest library of 0.10.2; treat it as read-only."""
    with unpacked(
        real_wheel("jax-rocm7-pjrt", "0.10.2"), tmp_path_factory.mktemp("pjrt")
    ) as (library,):
        yield library


def gfx(*names: str) -> list[GfxTarget]:
    return [GfxTarget.parse(name) for name in names]


# A second reader of the format, which shares no code with the one under test.


def rows(plain: bytes | memoryview) -> list[tuple[str, int, int]]:
    """Return entry ID, offset and size of each entry of an uncompressed bundle."""
    assert plain[:24] == b"__CLANG_OFFLOAD_BUNDLE__"
    found = []
    position = 32
    for _ in range(struct.unpack_from("<Q", plain, 24)[0]):
        offset, size, length = struct.unpack_from("<QQQ", plain, position)
        found.append(
            (
                bytes(plain[position + 24 : position + 24 + length]).decode(),
                offset,
                size,
            )
        )
        position += 24 + length
    return found


def code_digests(path: Path, *names: str) -> list[dict[str, str]]:
    """Return the SHA-256 of the code for some targets, by target, per bundle."""
    section = Elf.read(path).sections[".hip_fatbin"]
    with path.open("rb") as file:
        file.seek(section.offset)
        data = memoryview(file.read(section.size))
    found = []
    position = 0
    while position < len(data):
        plain: bytes | memoryview = data[position:]
        if plain[:4] == b"CCOB":
            _, _, stored, size, digest = struct.unpack_from(
                "<HHQQQ", data, position + 4
            )
            plain = zstandard.ZstdDecompressor().decompress(
                data[position + 32 : position + stored]
            )
            assert len(plain) == size
            if size < 1 << 24:
                assert hashlib.md5(plain).digest()[:8] == struct.pack("<Q", digest)
        else:
            stored = max(offset + size for _, offset, size in rows(plain))
        parts = {
            name.partition("--")[2]: plain[offset : offset + size]
            for name, offset, size in rows(plain)
        }
        found.append(
            {
                name: hashlib.sha256(code).hexdigest()
                for name, code in parts.items()
                if name in names
            }
        )
        position += stored
        padding = _CODE.search(data, position)
        position = padding.start() if padding else len(data)
    return found


def outside(path: Path) -> str:
    """Return the SHA-256 of a file without its fat binaries."""
    section = Elf.read(path).sections[".hip_fatbin"]
    digest = hashlib.sha256()
    with path.open("rb") as file:
        digest.update(file.read(section.offset))
        file.seek(section.size, 1)
        digest.update(file.read())
    return digest.hexdigest()


def test_read_targets_of_published_pjrt(pjrt: Path) -> None:
    report = read_targets(pjrt, verify=True)
    assert report.findings == ()
    assert report.device.bundles == 43
    assert report.device.formats == ("CCOB v3 zstd",)
    assert report.device.stored == 54_973_296
    assert report.device.unpacked == 5_189_488_920
    assert [code.target for code in report.device.targets] == ALL_0_10_2
    assert {code.bundles for code in report.device.targets} == {43}
    assert {bundle.offset % 4096 for bundle in report.bundles} == {0}
    assert set(bundle_pointers(pjrt)) == {bundle.address for bundle in report.bundles}


def test_slim_published_pjrt(pjrt: Path, tmp_path: Path) -> None:
    path = tmp_path / "slim.so"
    shutil.copyfile(pjrt, path)
    try:
        done = subprocess.run(
            [sys.executable, "-c", SLIM, path, *WANTED],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
        )
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert (
            report["peak"] < 1000
        )  # two threads decode three bundles each, with windows of 128 MiB
        assert report["stored_after"] < 8_000_000 < 50_000_000 < report["stored_before"]
        assert report["targets_kept"] == list(WANTED)
        assert report["targets_dropped"] == [
            name for name in ALL_0_10_2 if name not in WANTED
        ]
        assert [b.address for b in find_bundles(path)] == [
            b.address for b in find_bundles(pjrt)
        ]
        assert code_digests(path, *ALL_0_10_2) == code_digests(pjrt, *WANTED)
        assert outside(path) == outside(pjrt)
        read = read_targets(path, verify=True, whole=True)
        assert read.findings == ()
        assert [code.target for code in read.device.targets] == list(WANTED)
        held = read.kernels
        counts = {}
        for target in WANTED:
            counts[target] = sum(len(names[target]) for names in held.values())
        assert counts == {"gfx942": 23044, "gfx950": 23044}
        found = registered_kernels(path)
        assert {item.address for item in found} == held.keys()
        assert sum(len(item.kernels) for item in found) == 22498
        assert sum(item.unread for item in found) == 0
        assert all(
            item.kernels <= held[item.address][target]
            for item, target in product(found, WANTED)
        )
    finally:
        path.unlink()
