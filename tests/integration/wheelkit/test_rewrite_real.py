"""Rewriting of the published 154 MB wheel and of archives over 4 GiB, checked by other readers."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from isal import isal_zlib

from tests.support.tiny_wheel import INFO, METADATA, NAME, contents
from wheelkit.archive.member_writer import central_directory, local_header
from wheelkit.archive.output_file import OutFile
from wheelkit.archive.reader import WheelArchive
from wheelkit.archive.rewrite import WheelRewrite
from wheelkit.archive.verify import verify_record
from wheelkit.archive.zip_format import ZipMember

MEMBER = "jax_plugins/xla_rocm7/xla_rocm_plugin.so"
NEW_NAME = "jax_rocm7_pjrt-0.10.2-py3-none-manylinux_2_28_x86_64.whl"


@pytest.fixture
def pjrt(real_wheel: Callable[..., Path]) -> Path:
    return real_wheel("jax-rocm7-pjrt", "0.10.2")


def test_retagged_wheel_differs_in_two_small_members(pjrt: Path, tmp_path: Path) -> None:
    out = tmp_path / NEW_NAME
    with WheelArchive(pjrt) as source:
        info = f"{source.dist_info}/WHEEL"
        rewrite = WheelRewrite(source)
        rewrite.set(info, source.read(info).replace(b"2_27", b"2_28"))
        written = rewrite.write(out)
        old_record = source.record()
    with WheelArchive(out) as result:
        assert verify_record(result) == ()
        assert result.wheel_info()["Tag"] == "py3-none-manylinux_2_28_x86_64"
        changed = {name for name, entry in result.record().items() if old_record[name] != entry}
        assert changed == {info}
        assert result[MEMBER].mode == 0o755
    assert abs(written.size - pjrt.stat().st_size) < 100
    with zipfile.ZipFile(out) as archive, zipfile.ZipFile(pjrt) as before:
        assert archive.getinfo(MEMBER).CRC == before.getinfo(MEMBER).CRC
        assert [entry.filename for entry in archive.infolist()] == [entry.filename for entry in before.infolist()]


def test_verify_and_rewrite_stay_under_100_mib(pjrt: Path, tmp_path: Path) -> None:
    code = f"""
import re
from pathlib import Path
from wheelkit.archive.reader import WheelArchive
from wheelkit.archive.verify import verify_record
from wheelkit.archive.rewrite import WheelRewrite
with WheelArchive(Path({str(pjrt)!r})) as source:
    assert verify_record(source, extract={{{MEMBER!r}: Path({str(tmp_path / "x.so")!r})}}) == ()
    rewrite = WheelRewrite(source)
    rewrite.set(source.dist_info + "/NOTE", b"")
    rewrite.write(Path({str(tmp_path / NEW_NAME)!r}))
print(re.search(r"VmHWM:\\s+([0-9]+) kB", Path("/proc/self/status").read_text())[1])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100 * 1024


HUGE = (4 << 30) + (64 << 20) + 12345
"""Bytes of a member of zeros that needs zip64."""


def zeros_crc(size: int) -> int:
    crc, piece = 0, bytes(1 << 20)
    for _ in range(size >> 20):
        crc = isal_zlib.crc32(piece, crc)
    return isal_zlib.crc32(bytes(size % (1 << 20)), crc)


def huge_wheel(path: Path, method: int, body: bytes | None) -> Path:
    """Write a wheel that begins with HUGE zeros, stored as a hole of the file or deflated as `body`."""
    packed = HUGE if body is None else len(body)
    files = contents()
    files[f"{INFO}/RECORD"] += f"tiny/huge.bin,sha256={'A' * 43},{HUGE}\n".encode()
    common: dict[str, Any] = {"external_attr": 0o100644 << 16, "date_time": (2000, 1, 1, 0, 0, 0), "data_offset": 0}
    members = [
        ZipMember(
            name="tiny/huge.bin", method=method, crc32=zeros_crc(HUGE), compressed_size=packed, size=HUGE,
            header_offset=0, **common,
        )
    ]  # fmt: skip
    with path.open("wb") as file:
        file.write(local_header(members[0]) + (body or b""))
        file.truncate(file.tell() + packed - len(body or b""))
        file.seek(0, os.SEEK_END)
        for name, data in files.items():
            size = len(data)
            member = ZipMember(
                name=name, method=0, crc32=zlib.crc32(data), compressed_size=size, size=size,
                header_offset=file.tell(), **common,
            )  # fmt: skip
            members.append(member)
            file.write(local_header(member) + data)
        file.write(central_directory(members, file.tell()))
    return path


def test_rewrite_archive_over_4_gib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All offsets after a stored member of 4 GiB are 64-bit; a hole instead of zeros saves disk space and time."""
    copy = OutFile.copy

    def copy_holes(self: OutFile, source: int, offset: int, size: int) -> None:
        if size < HUGE:
            return copy(self, source, offset, size)
        self.position += size
        os.ftruncate(self.fd, self.position)
        return None

    monkeypatch.setattr(OutFile, "copy", copy_holes)
    source_path, out = huge_wheel(tmp_path / NAME, 0, None), tmp_path / "tiny-1.0-1-py3-none-any.whl"
    with WheelArchive(source_path) as source:
        assert source[f"{INFO}/METADATA"].header_offset > HUGE
        rewrite = WheelRewrite(source)
        rewrite.set("tiny/__init__.py", b"y = 2\n")
        rewrite.write(out)
    for path in (source_path, out):
        with zipfile.ZipFile(path) as archive:
            assert archive.getinfo("tiny/huge.bin").file_size == HUGE
            assert archive.read(f"{INFO}/METADATA") == METADATA
    with zipfile.ZipFile(out) as archive:
        assert archive.read("tiny/__init__.py") == b"y = 2\n"
    with WheelArchive(out) as result:
        assert result["tiny/__init__.py"].header_offset > HUGE
        assert result.read("tiny/__init__.py") == b"y = 2\n"
