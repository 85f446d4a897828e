"""A tar stream, read once from front to end: POSIX ustar and pax (IEEE 1003.1-2017, "pax"), and GNU's long names.

Whatever this does not know is refused rather than guessed at: what a build is made of must mean one thing only.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from core.errors import ArchiveError

BLOCK = 512
_LARGEST_HEADER = 1 << 20
"""Bytes of a pax header or of a long name; a path has at most 4096."""
_NOTHING = bytes(BLOCK)


class Kind(enum.StrEnum):
    """What an entry is."""

    FILE = "file"
    FOLDER = "folder"
    SYMLINK = "symlink"
    HARDLINK = "hardlink"


_KINDS = dict.fromkeys((b"0", b"\0", b"7"), Kind.FILE) | {
    b"1": Kind.HARDLINK,
    b"2": Kind.SYMLINK,
    b"5": Kind.FOLDER,
}
_REFUSED = {b"3": "a character device", b"4": "a block device", b"6": "a named pipe", b"S": "a sparse file"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One entry as the archive has it, unchecked.

    Attributes:
        link: what a link leads to.
        size: bytes of content.
    """

    name: str
    kind: Kind
    mode: int
    size: int
    link: str = ""


class Blocks:
    """The bytes of a stream, in pieces that are not copied."""

    def __init__(self, source: Iterator[memoryview]) -> None:
        self._source = source
        self._piece = memoryview(b"")
        self.position = 0

    def some(self, most: int) -> memoryview:
        """At least one byte and at most so many; the view is good until the next call."""
        while not self._piece:
            try:
                self._piece = next(self._source)
            except StopIteration:
                raise ArchiveError(
                    f"The archive ends at byte {self.position}, in the middle of something.", hint="Fetch it again."
                ) from None
        taken, self._piece = self._piece[:most], self._piece[most:]
        self.position += len(taken)
        return taken

    def exactly(self, count: int) -> bytes:
        """So many bytes; only for few."""
        taken = self.some(count)
        if len(taken) == count:
            return bytes(taken)
        data = bytearray(taken)
        while len(data) < count:
            data += self.some(count - len(data))
        return bytes(data)

    def skip(self, count: int) -> None:
        """Leave so many bytes out."""
        while count > 0:
            count -= len(self.some(count))

    def rest(self) -> Iterator[memoryview]:
        """Everything up to the end."""
        while True:
            if self._piece:
                yield self.some(len(self._piece))
            if (piece := next(self._source, None)) is None:
                return
            self._piece = piece


def entries(blocks: Blocks) -> Iterator[Entry]:
    """Every entry up to the end mark; the caller takes or skips its content, and the padding, before the next one.

    Raises:
        ArchiveError: damaged, without an end mark, or something in it that has no place in a tree of files.
    """
    extra: dict[str, str] = {}
    while (header := blocks.exactly(BLOCK)) != _NOTHING:
        kind, size, name = _checked(header, blocks.position), _number(header[124:136]), _name(header)
        if kind == b"g":
            if given := _pax(_content(blocks, size, "a global header")):
                words = " and ".join(sorted(given))
                raise ArchiveError(f"The archive gives one {words} to all its entries.", hint="Do not use it.")
        elif kind == b"x":
            extra |= _pax(_content(blocks, size, "a header"))
        elif kind in (b"L", b"K"):
            key = "path" if kind == b"L" else "linkpath"
            extra[key] = _text(_content(blocks, size, "a long name").rstrip(b"\0"))
        elif kind in _KINDS:
            found = _KINDS[kind]
            name = extra.get("path", name)
            if found is Kind.FILE and name.endswith("/"):
                if kind != b"\0":
                    raise ArchiveError(
                        f"The archive holds the file {name!r}, named as a folder.", hint="Do not use it."
                    )
                found = Kind.FOLDER  # as tar wrote them before there was a type for it
            if "size" in extra:
                size = _decimal(extra["size"])
            yield Entry(
                name=name,
                kind=found,
                mode=_number(header[100:108]),
                size=size if found is Kind.FILE else 0,
                link=extra.get("linkpath", _text(header[157:257].partition(b"\0")[0])),
            )
            extra = {}
        else:
            what = _REFUSED.get(kind, f"an entry of the unknown type {kind!r}")
            raise ArchiveError(f"The archive holds {what}: {extra.get('path', name)!r}.", hint="Do not use it.")


def padding(size: int) -> int:
    """Bytes after content of that size."""
    return -size % BLOCK


def _checked(header: bytes, position: int) -> bytes:
    """The type of the entry, of a header whose checksum is right."""
    # The checksum's own field counts as eight spaces.
    if _number(header[148:156]) != sum(header) - sum(header[148:156]) + 8 * 32:
        raise ArchiveError(f"The archive is damaged: no header at byte {position - BLOCK}.", hint="Fetch it again.")
    return header[156:157]


def _name(header: bytes) -> str:
    name = header[:100].partition(b"\0")[0]
    prefix = header[345:500].partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return _text(prefix + b"/" + name if prefix else name)


def _content(blocks: Blocks, size: int, what: str) -> bytes:
    if not 0 <= size <= _LARGEST_HEADER:
        raise ArchiveError(f"The archive holds {what} of {size} bytes.", hint="Do not use it.")
    data = blocks.exactly(size) if size else b""
    blocks.skip(padding(size))
    return data


def _pax(data: bytes) -> dict[str, str]:
    """The records of a pax header; those that would change what an entry is are refused."""
    found = {}
    while data:
        length, space, _ = data.partition(b" ")
        count = _decimal(length.decode("ascii", "replace")) if space else 0
        key, equals, value = data[len(length) + 1 : count - 1].partition(b"=")
        if not equals or data[count - 1 : count] != b"\n":
            raise ArchiveError("The archive is damaged: a pax header is not one.", hint="Fetch it again.")
        if key.startswith(b"GNU.sparse."):
            raise ArchiveError("The archive holds a sparse file.", hint="Pack it without --sparse.")
        if key in (b"path", b"linkpath", b"size"):
            found[key.decode()] = _text(value)
        data = data[count:]
    return found


def _number(field: bytes) -> int:
    """A number as octal digits, or in base 256 as GNU writes large ones."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0")
    if digits.strip(b"01234567"):  # a sign, for one, which `int` would take
        raise ArchiveError(f"The archive is damaged: {field!r} is not a number.", hint="Fetch it again.")
    return int(digits or b"0", 8)


def _decimal(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 20:
        raise ArchiveError(f"The archive is damaged: {text[:40]!r} is not a number.", hint="Fetch it again.")
    return int(text)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
