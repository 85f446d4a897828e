"""Unpacking.

Malicious or damaged archives are refused, good ones become the same tree as with GNU
tar.
"""

from __future__ import annotations

import io
import os
import stat
import subprocess
import tarfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from core.errors import ArchiveError
from core.store import remove
from core.unpack.decompress import chunks_of
from core.unpack.extract import Limits, extract
from core.unpack.tree_contents import (
    Contents,
    differences,
    dump_contents,
    load_contents,
)
from tests.support.made_rocm import COMPRESS


class Made:
    """A tar archive under construction."""

    def __init__(self, format: int = tarfile.GNU_FORMAT) -> None:  # noqa: A002 - the word of tarfile
        self._file = io.BytesIO()
        self.tar = tarfile.open(fileobj=self._file, mode="w", format=format)  # noqa: SIM115 - closed by data()

    def add(self, name: str, data: bytes = b"", **more: Any) -> Made:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        for key, value in more.items():
            setattr(info, key, value)
        self.tar.addfile(info, io.BytesIO(data))
        return self

    def link(self, name: str, to: str) -> Made:
        return self.add(name, type=tarfile.SYMTYPE, linkname=to)

    def hard(self, name: str, to: str) -> Made:
        return self.add(name, type=tarfile.LNKTYPE, linkname=to)

    def data(self) -> bytes:
        self.tar.close()
        return self._file.getvalue()


def chunks(data: bytes) -> Generator[bytes]:
    return chunks_of(io.BytesIO(data))


def unpack(data: bytes, into: Path, compression: str = "gz", **more: Any) -> Contents:
    into.mkdir(exist_ok=True)
    return extract(chunks(COMPRESS[compression](data)), compression, into, **more)


GOOD = (
    Made(tarfile.PAX_FORMAT)
    .add("./", type=tarfile.DIRTYPE)
    .add("./bin", type=tarfile.DIRTYPE, mode=0o700)
    .add("./bin/clang", b"\x7fELF" * 300_000, mode=0o6755)
    .add("./include/secret.h", b"int x;", mode=0o600)
    .link("./bin/clang++", "clang")
    .link("./lib64", "lib")
    .hard("./bin/amdclang", "./bin/clang")
    .add("./share/empty", type=tarfile.DIRTYPE)
    .add("./lib/" + "long" * 60 + "/name", b"long")
    .add("./lib/umlaut-\u00fc+x", b"x" * 512)
    .add("./lib/none")
    .data()
)


@pytest.mark.parametrize("compression", COMPRESS)
def test_unpack_good_archive_gives_read_only_tree(
    tmp_path: Path, compression: str
) -> None:
    tree = tmp_path / "tree"
    contents = unpack(GOOD, tree, compression)
    assert (tree / "bin/clang").read_bytes() == b"\x7fELF" * 300_000
    assert stat.S_IMODE((tree / "bin/clang").stat().st_mode) == 0o555
    assert stat.S_IMODE((tree / "include/secret.h").stat().st_mode) == 0o400
    assert stat.S_IMODE((tree / "bin").stat().st_mode) == 0o555
    assert stat.S_IMODE(tree.stat().st_mode) == 0o555
    assert (tree / "bin/clang++").resolve() == (tree / "bin/clang").resolve()
    assert (tree / "bin/amdclang").samefile(tree / "bin/clang")
    assert (tree / "lib/umlaut-\u00fc+x").read_bytes() == b"x" * 512
    assert differences(tree, contents) == ()
    assert load_contents(dump_contents(contents)) == contents
    remove(tree)
    assert not tree.exists()


@pytest.mark.parametrize("format", ["gnu", "posix"])
def test_unpack_agrees_with_gnu_tar(tmp_path: Path, format: str) -> None:  # noqa: A002
    source = tmp_path / "source"
    for name in ("a/b/c", "a/" + "n" * 90 + "/" + "m" * 90, "bin/tool"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(os.urandom(3000))
    (source / "bin/tool").chmod(0o755)
    (source / "link").symlink_to("a/b/c")
    archive = tmp_path / "x.tar.gz"
    subprocess.run(
        ["tar", f"--format={format}", "-czf", archive, "-C", source, "."], check=True
    )
    (tmp_path / "ours").mkdir()
    with archive.open("rb") as stream:
        extract(chunks_of(stream), "gz", tmp_path / "ours")
    subprocess.run(
        ["diff", "--recursive", "--no-dereference", source, tmp_path / "ours"],
        check=True,
    )
    assert os.access(tmp_path / "ours/bin/tool", os.X_OK)


def test_unpack_selection_writes_part_and_lists_all(tmp_path: Path) -> None:
    contents = unpack(
        GOOD, tmp_path / "tree", wanted=lambda path: path.startswith("include/")
    )
    assert sorted(p.name for p in (tmp_path / "tree").iterdir()) == ["include"]
    assert not contents["bin/clang"].taken
    assert contents["bin/clang"].size == 1_200_000
    assert differences(tmp_path / "tree", contents) == ()


def raw(kind: bytes, name: str = "x", size: int = 0) -> bytes:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT) + bytes(1024)


MALICIOUS: dict[str, tuple[bytes, str]] = {
    "absolute": (Made().add("/etc/x", b"x").data(), "unsafe path"),
    "pax-dotdot": (
        Made(tarfile.PAX_FORMAT).add("x", b"x", pax_headers={"path": "../x"}).data(),
        "unsafe path",
    ),
    "long-name": (Made().add("n" * 300, b"x").data(), "unsafe path"),
    "symlink-around": (
        Made().add("a").link("x", "../tree/a").data(),
        "outside the target folder",
    ),
    "symlink-by-symlink": (
        Made().add("s/f").link("s/d", "..").link("l", "s/d/..").data(),
        "outside the target folder",
    ),
    "through-symlink": (
        Made().link("a", "b").add("b/x").add("a/y", b"x").data(),
        "no folder",
    ),
    "hardlink-nowhere": (Made().hard("x", "y").data(), "not a file in it"),
    "twice": (Made().add("x", b"1").add("x", b"2").data(), "two entries"),
    "file-and-folder": (
        Made().add("x", b"1").add("x", type=tarfile.DIRTYPE).data(),
        "two entries",
    ),
    "pipe": (Made().add("x", type=tarfile.FIFOTYPE).data(), "named pipe"),
    "pax-sparse": (
        Made(tarfile.PAX_FORMAT).add("x", pax_headers={"GNU.sparse.major": "1"}).data(),
        "sparse",
    ),
    "huge-pax-header": (raw(b"x", size=1 << 33), "of 8589934592 bytes"),
    "bad-size": (
        Made(tarfile.PAX_FORMAT).add("x", b"1", pax_headers={"size": "-5"}).data(),
        "-5 bytes|no header",
    ),
    "global-path": (
        tarfile.TarInfo.create_pax_global_header({"path": "y"}) + GOOD,
        "one path for all",
    ),
    "bad-checksum": (bytes([GOOD[0] ^ 1]) + GOOD[1:], "no header"),
    "folder-as-file": (Made().add("x/", b"1").data(), "with the name of a folder"),
    "no-end": (raw(b"0")[:512], "is truncated"),
    "behind-the-end": (GOOD + b"x" * 512, "after its end"),
}


@pytest.mark.parametrize("name", MALICIOUS)
def test_unpack_refuses_malicious_archive(tmp_path: Path, name: str) -> None:
    data, words = MALICIOUS[name]
    (tmp_path / "around").mkdir()
    with pytest.raises(ArchiveError, match=words):
        unpack(data, tmp_path / "around/tree")
    # Nothing was created outside of the tree.
    assert [path.name for path in (tmp_path / "around").iterdir()] == ["tree"]
    assert [path.name for path in tmp_path.iterdir()] == ["around"]


def test_unpack_refuses_bombs(tmp_path: Path) -> None:
    many = Made()
    for number in range(20):
        many.add(f"f{number}")
    with pytest.raises(ArchiveError, match="more than 10 entries"):
        unpack(many.data(), tmp_path / "many", limits=Limits(entries=10))
    with pytest.raises(ArchiveError, match="or 1000000 bytes"):
        unpack(
            Made().add("x", bytes(2_000_000)).data(),
            tmp_path / "large",
            limits=Limits(size=1_000_000),
        )
    # A file with a large declared size is refused before a byte is written.
    assert list((tmp_path / "large").iterdir()) == []
    # Skipped entries count too.
    small = Limits(size=1_000_000)
    with pytest.raises(ArchiveError, match="or 1000000 bytes"):
        unpack(
            raw(b"0", size=8 << 30),
            tmp_path / "said",
            limits=small,
            wanted=lambda _: False,
        )


@pytest.mark.parametrize("compression", COMPRESS)
def test_unpack_refuses_damaged_compression(tmp_path: Path, compression: str) -> None:
    data = COMPRESS[compression](GOOD)
    damaged = (
        data[: len(data) * 7 // 8],
        data[: len(data) // 2],
        data[:-40] + b"\xff" * 20 + data[-20:],
        b"text",
    )
    for number, broken in enumerate(damaged):
        (tmp_path / str(number)).mkdir()
        with pytest.raises(ArchiveError):
            extract(chunks(broken), compression, tmp_path / str(number))


def test_unpack_read_error_is_not_damage(tmp_path: Path) -> None:
    def broken() -> Generator[bytes]:
        yield COMPRESS["gz"](GOOD)[:1000]
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        extract(broken(), "gz", tmp_path)


def test_unpack_refuses_hard_link_to_unselected_file(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="which is not unpacked"):
        unpack(
            Made().add("a", b"1").hard("b", "a").data(),
            tmp_path / "tree",
            wanted=lambda path: path == "b",
        )


def test_tree_changes_are_reported(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    contents = unpack(GOOD, tree)
    for path in (tree, *tree.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
    changes = differences(tree, contents)
    assert changes
    assert all("mode 755, not 555" in line for line in changes)
    (tree / "bin/clang").chmod(0o755)
    (tree / "bin/clang").write_bytes(b"\x7fELF" * 299_999 + b"ELF\x7f")
    (tree / "bin/clang").chmod(0o555)
    (tree / "include/secret.h").unlink()
    (tree / "lib64").unlink()
    (tree / "lib64").symlink_to("bin")
    (tree / "bin/new").write_bytes(b"")
    found = "\n".join(
        line for line in differences(tree, contents) if "mode" not in line
    )
    assert found.splitlines() == [
        "bin/amdclang: content differs",
        "bin/clang: content differs",
        "bin/new: unexpected",
        "include/secret.h: missing",
        "lib64: not a link to lib",
    ]
