"""Bytes of a wheel by kind of content, unpacked and as stored in the archive."""

from __future__ import annotations

import bisect
import contextlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from isal import isal_zlib

from wheelkit.archive.inflate import BROKEN
from wheelkit.archive.wheel_archive import WheelArchive
from wheelkit.archive.zip_format import STORED
from wheelkit.elf import constants
from wheelkit.elf.elf_tables import Section
from wheelkit.inspect.inspection_model import ContentPart

OTHER = "other"

_LINKING_TYPES = frozenset(
    {
        constants.SHT_STRTAB,
        constants.SHT_RELA,
        constants.SHT_HASH,
        constants.SHT_REL,
        constants.SHT_DYNSYM,
    }
)
_FATBIN = ".hip_fatbin"

_STEP = 4096
_SMALL = 8 << 20

Checkpoint = tuple[int, int]
"""(unpacked bytes, stored bytes) at one moment while a member is inflated.

Neither number ever decreases.
"""


class TracedArchive(WheelArchive):
    """A wheel that records the stored bytes read when each member chunk was inflated."""

    def __init__(self, path: Path) -> None:
        self.checkpoints: dict[str, list[Checkpoint]] = {}
        self._read_to = 0
        super().__init__(path)

    def pread(self, size: int, offset: int) -> bytes:
        """Read as `WheelArchive` does, and record the end of the range."""
        self._read_to = offset + size
        return super().pread(size, offset)

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield chunks as `WheelArchive` does, and record `checkpoints`."""
        start = self[name].data_offset
        done = 0
        line = self.checkpoints[name] = []
        for chunk in super().chunks(name):
            done += len(chunk)
            line.append((done, self._read_to - start))
            yield chunk

    def checkpoints_of(self, name: str) -> Sequence[Checkpoint]:
        """Return the recorded checkpoints; small members are inflated again in smaller steps."""
        member = self[name]
        if member.method == STORED or member.compressed_size > _SMALL:
            return self.checkpoints.get(name, ())
        return checkpoints(self.pread(member.compressed_size, member.data_offset))


def part_of_section(section: Section) -> str:
    """Return the part that a section belongs to, by its name and its gABI type and flags."""
    if section.name == _FATBIN:
        return "device code"
    if section.name.startswith((".eh_frame", ".gcc_except_table")):
        return "exception tables"
    if not section.is_loaded:
        if section.name.startswith((".debug", ".zdebug", ".gdb_index")):
            return "debug info"
        if section.type == constants.SHT_SYMTAB or section.name == ".strtab":
            return "symbol tables"
        return OTHER
    if section.flags & constants.SHF_EXECINSTR:
        return "host code"
    if section.type in _LINKING_TYPES or section.type >= constants.SHT_GNU_FIRST:
        return "dynamic linking"
    return "data" if section.flags & constants.SHF_WRITE else "read-only data"


def part_of_file(name: str) -> str:
    """Return the part that a file other than a library belongs to."""
    if ".dist-info/" in name:
        return "metadata"
    return "Python" if name.endswith((".py", ".pyi", ".pth", ".typed")) else OTHER


def split_library(
    sections: Iterable[Section],
    size: int,
    stored: int,
    checkpoints: Sequence[Checkpoint],
) -> tuple[ContentPart, ...]:
    """Return the parts of one library.

    Bytes outside all sections (headers, padding) belong to `other`.

    Args:
        sections: sections of the library, in any order.
        size: size of the library in bytes, the sum of the parts' `unpacked`.
        stored: compressed size of the library in bytes, the sum of the parts' `stored`.
        checkpoints: recorded while the library was inflated, ascending. Between two
            checkpoints, all bytes count as equally compressed; without checkpoints, all
            bytes of the library do.
    """
    line = [(0, 0), *checkpoints, (size, stored)]
    unpacked = Counter[str]()
    packed = defaultdict[str, float](float)
    end = 0
    for section in sorted(sections, key=lambda item: item.offset):
        start = max(section.offset, end)
        stop = min(section.end, size)
        if stop > start:
            kind = part_of_section(section)
            unpacked[kind] += stop - start
            packed[kind] += _stored_at(line, stop) - _stored_at(line, start)
            end = stop
    whole = Counter({kind: round(value) for kind, value in packed.items()})
    unpacked[OTHER] += size - unpacked.total()
    whole[OTHER] = max(0, whole[OTHER] + stored - whole.total())
    return tuple(
        ContentPart(name=kind, unpacked=unpacked[kind], stored=whole[kind])
        for kind in unpacked
    )


def checkpoints(packed: bytes) -> list[Checkpoint]:
    """Inflate raw deflate data in steps of a few kB and return the checkpoints up to any damage."""
    line = []
    done = 0
    inflater = isal_zlib.decompressobj(-15)
    with contextlib.suppress(BROKEN):
        for at in range(_STEP, len(packed) + _STEP, _STEP):
            done += len(inflater.decompress(packed[at - _STEP : at]))
            line.append((done, min(at, len(packed))))
    return line


def sum_parts(parts: Iterable[ContentPart]) -> tuple[ContentPart, ...]:
    """Add up parts with the same name; sort by stored size, largest first, and omit empty parts."""
    unpacked = Counter[str]()
    stored = Counter[str]()
    for part in parts:
        unpacked[part.name] += part.unpacked
        stored[part.name] += part.stored
    return tuple(
        ContentPart(name=name, unpacked=unpacked[name], stored=stored[name])
        for name in sorted(unpacked, key=lambda name: (-stored[name], name))
        if unpacked[name] or stored[name]
    )


def _stored_at(line: Sequence[Checkpoint], offset: int) -> float:
    """Return the stored bytes up to an unpacked offset, by linear interpolation."""
    right = bisect.bisect_left(line, (offset, 0), lo=1, hi=len(line) - 1)
    x0, y0 = line[right - 1]
    x1, y1 = line[right]
    if x1 <= x0:
        return float(y1)
    return y0 + (y1 - y0) * min(1.0, (offset - x0) / (x1 - x0))
