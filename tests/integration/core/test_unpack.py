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

    def add(
        self,
        name: str,
        data: bytes = b"",
        **more: Any,
    ) -> Made:
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


def unpack(
    data: bytes,
    into: Path,
    compression: str = "gz",
    **more: Any,
) -> Contents:
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


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("compression", COMPRESS)
def test_unpack_good_archive_gives_read_only_tree(
    tmp_path: Path, compression: str
) -> None:
    tree = tmp_path / "tree"
    contents = unpack(GOOD, tree, compression)
    clang = tree / "bin/clang"
    assert clang.read_bytes() == b"\x7fELF" * 300_000
    assert mode_of(clang) == 0o555
    assert mode_of(tree / "include/secret.h") == 0o400
    assert mode_of(tree / "bin") == 0o555
    assert mode_of(tree) == 0o555
    assert (tree / "bin/clang++").resolve() == clang.resolve()
    assert (tree / "bin/amdclang").samefile(clang)
    assert (tree / "lib/umlaut-\u00fc+x").read_bytes() == b"x" * 512
    assert differences(tree, contents) == ()
    assert load_contents(dump_contents(contents)) == contents
    remove(tree)
    assert not tree.exists()


@pytest.mark.parametrize("format", ["gnu", "posix"])
def test_unpack_agrees_with_gnu_tar(tmp_path: Path, format: str) -> None:  # noqa: A002
    source = tmp_path / "source"
    tool = source / "bin/tool"
    long = source / "a" / ("n" * 90) / ("m" * 90)
    for path in (source / "a/b/c", long, tool):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(3000))
    tool.chmod(0o755)
    (source / "link").symlink_to("a/b/c")
    archive = tmp_path / "x.tar.gz"
    pack: list[str | Path] = [
        "tar",
        f"--format={format}",
        "-czf",
        archive,
        "-C",
        source,
        ".",
    ]
    subprocess.run(pack, check=True)
    ours = tmp_path / "ours"
    ours.mkdir()
    with archive.open("rb") as stream:
        extract(chunks_of(stream), "gz", ours)
    compare: list[str | Path] = [
        "diff",
        "--recursive",
        "--no-dereference",
        source,
        ours,
    ]
    subprocess.run(compare, check=True)
    assert os.access(ours / "bin/tool", os.X_OK)


def test_unpack_selection_writes_part_and_lists_all(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    contents = unpack(GOOD, tree, wanted=lambda path: path.startswith("include/"))
    assert [path.name for path in tree.iterdir()] == ["include"]
    clang = contents["bin/clang"]
    assert not clang.taken
    assert clang.size == 1_200_000
    assert differences(tree, contents) == ()


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
    around = tmp_path / "around"
    around.mkdir()
    with pytest.raises(ArchiveError, match=words):
        unpack(data, around / "tree")
    # Nothing was created outside of the tree.
    assert [*around.iterdir()] == [around / "tree"]
    assert [*tmp_path.iterdir()] == [around]


def test_unpack_refuses_bombs(tmp_path: Path) -> None:
    many = Made()
    for number in range(20):
        many.add(f"f{number}")
    with pytest.raises(ArchiveError, match="more than 10 entries"):
        unpack(many.data(), tmp_path / "many", limits=Limits(entries=10))
    small = Limits(size=1_000_000)
    large = Made().add("x", bytes(2_000_000)).data()
    with pytest.raises(ArchiveError, match="or 1000000 bytes"):
        unpack(large, tmp_path / "large", limits=small)
    # A file with a large declared size is refused before a byte is written.
    assert [*(tmp_path / "large").iterdir()] == []
    # Skipped entries count too.
    declared = raw(b"0", size=8 << 30)
    with pytest.raises(ArchiveError, match="or 1000000 bytes"):
        unpack(declared, tmp_path / "said", limits=small, wanted=lambda _: False)


@pytest.mark.parametrize("compression", COMPRESS)
def test_unpack_refuses_damaged_compression(tmp_path: Path, compression: str) -> None:
    data = COMPRESS[compression](GOOD)
    half = len(data) // 2
    damaged = (
        data[: half + half // 2],
        data[:half],
        data[:-40] + b"\xff" * 20 + data[-20:],
        b"text",
    )
    for number, broken in enumerate(damaged):
        tree = tmp_path / str(number)
        tree.mkdir()
        with pytest.raises(ArchiveError):
            extract(chunks(broken), compression, tree)


def test_unpack_read_error_is_not_damage(tmp_path: Path) -> None:
    def broken() -> Generator[bytes]:
        yield COMPRESS["gz"](GOOD)[:1000]
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        extract(broken(), "gz", tmp_path)


def test_unpack_refuses_hard_link_to_unselected_file(tmp_path: Path) -> None:
    linked = Made().add("a", b"1").hard("b", "a").data()
    with pytest.raises(ArchiveError, match="which is not unpacked"):
        unpack(linked, tmp_path / "tree", wanted=lambda path: path == "b")


def test_tree_changes_are_reported(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    contents = unpack(GOOD, tree)
    for path in (tree, *tree.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
    changes = differences(tree, contents)
    assert changes
    assert all("mode 755, not 555" in line for line in changes)
    clang = tree / "bin/clang"
    clang.chmod(0o755)
    clang.write_bytes(b"\x7fELF" * 299_999 + b"ELF\x7f")
    clang.chmod(0o555)
    (tree / "include/secret.h").unlink()
    link = tree / "lib64"
    link.unlink()
    link.symlink_to("bin")
    (tree / "bin/new").write_bytes(b"")
    found = differences(tree, contents)
    assert [line for line in found if "mode" not in line] == [
        "bin/amdclang: content differs",
        "bin/clang: content differs",
        "bin/new: unexpected",
        "include/secret.h: missing",
        "lib64: not a link to lib",
    ]
