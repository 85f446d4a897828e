"""Clang offload bundles: a header and the code objects of several targets, plain or compressed.

Sources: LLVM, "Clang Offload Bundler" (container format, bundle entry IDs) and the
header tables of CompressedOffloadBundle (CCOB versions 2 and 3); all numbers are little
endian. The clang of ROCm 7 writes only these versions, and only with zstd.
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
import struct
from collections.abc import Sequence

import zstandard

from core.errors import FatbinError, RequestError
from core.frozen import frozen
from core.model import GfxTarget
from core.targets import covers

PLAIN_MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
PACKED_MAGIC = b"CCOB"
_ZSTD = 1
"""Compression method; a value of llvm::compression::Format."""

HEAD_LIMIT = 1 << 16
"""Maximum size of an entry table in bytes; a table of 27 targets has 1.6 kB."""
CONTENT_LIMIT = 1 << 32
"""Maximum size of an uncompressed bundle in bytes; real bundles have up to 0.24 GB."""
PAGE = 4096
"""Maximum alignment of code objects in bytes."""
LEVEL, LEVEL_TIGHT = 4, 19
"""zstd levels.

Level 4 packs two targets of 0.10.2 into 6.8 MB in 0.3 CPU seconds, level 6 into 6.1 MB
in 0.7.
"""
_ENTRY = struct.Struct("<QQQ")
_LAYOUTS = {2: struct.Struct("<4sHHIIQ"), 3: struct.Struct("<4sHHQQQ")}


@frozen
class BundleEntry:
    """One row of a bundle's entry table.

    `offset` is relative to the start of the uncompressed bundle.
    """

    id: str
    offset: int
    size: int

    @property
    def is_host(self) -> bool:
        """True for the host's entry, which HIP keeps empty."""
        return self.id.startswith("host-")

    @property
    def target(self) -> GfxTarget | None:
        """The gfx target of an entry ID such as hipv4-amdgcn-amd-amdhsa--gfx90a:xnack-.

        None for IDs that HIP skips.
        """
        return _target_of(self.id)

    @property
    def name(self) -> str:
        """Name in reports: the gfx target, or the whole ID if the entry has no target."""
        return str(self.target or self.id)


@functools.lru_cache(maxsize=1000)  # all bundles of a file have the same few dozen IDs
def _target_of(entry_id: str) -> GfxTarget | None:
    match = re.fullmatch(
        r"(?:hipv4|hip)-amdgcn-amd-amdhsa-(?:[a-z]*-)?(gfx.+)", entry_id
    )
    try:
        return GfxTarget.parse(match[1]) if match else None
    except RequestError:
        return None


@frozen
class CompressedHeader:
    """The header of a compressed bundle.

    Attributes:
        file_size: size of the compressed bundle in bytes, header included.
        size: size of the uncompressed bundle in bytes.
        digest: first 8 bytes of the MD5 of the uncompressed bundle, as a number.
    """

    version: int
    file_size: int
    size: int
    digest: int

    @property
    def header_size(self) -> int:
        """Size of the header in bytes."""
        return _LAYOUTS[self.version].size

    @classmethod
    def parse(cls, data: bytes) -> CompressedHeader:
        """Parse the header at the start of a compressed bundle.

        Raises:
            FatbinError: the version or method is unknown, or the sizes are impossible.
        """
        version = int.from_bytes(data[4:6], "little")
        layout = _LAYOUTS.get(version)
        if layout is None or len(data) < layout.size:
            raise FatbinError("The header is not a known compressed bundle header.")
        _, _, method, file_size, size, digest = layout.unpack_from(data)
        if method != _ZSTD:
            raise FatbinError(f"Compression method {method} is unknown.")
        if size > CONTENT_LIMIT or file_size <= layout.size:
            raise FatbinError(
                f"The header has impossible sizes: {file_size} stored, {size}"
                " uncompressed."
            )
        return cls(version=version, file_size=file_size, size=size, digest=digest)


def digest_value(digest: bytes) -> int:
    """Return the header's checksum field for a 16-byte MD5 digest."""
    return int.from_bytes(digest[:8], "little")


def parse_entries(head: bytes, size: int) -> tuple[BundleEntry, ...]:
    """Parse the entry table at the start of an uncompressed bundle.

    Args:
        head: first bytes of the bundle, at least the whole table.
        size: size of the whole bundle in bytes; entries may not reach beyond it.

    Raises:
        FatbinError: the data is not a bundle, the table is longer than `head`, or
            entries overlap or lie outside the bundle.
    """
    if head[: len(PLAIN_MAGIC)] != PLAIN_MAGIC:
        raise FatbinError("The bundle does not begin with the offload bundle magic.")
    entries = []
    position = len(PLAIN_MAGIC) + 8
    count = int.from_bytes(head[position - 8 : position], "little")
    for _ in range(count):
        if position + _ENTRY.size > len(head):
            raise FatbinError("The entry table does not end.")
        offset, length, id_size = _ENTRY.unpack_from(head, position)
        position += _ENTRY.size + id_size
        name = head[position - id_size : position]
        if position > len(head) or not name.isascii():
            raise FatbinError("The entry table is damaged.")
        entries.append(BundleEntry(id=name.decode(), offset=offset, size=length))
    end = position
    for entry in sorted((e for e in entries if e.size), key=lambda e: e.offset):
        if entry.offset < end or entry.offset + entry.size > size:
            raise FatbinError(
                f"Entry {entry.id} overlaps another entry or lies outside the bundle."
            )
        end = entry.offset + entry.size
    return tuple(entries)


def place_entries(
    entries: Sequence[BundleEntry], *, alignment: int = PAGE
) -> tuple[BundleEntry, ...]:
    """Return the entries with new offsets.

    Aligned, one after another behind the table, as the bundler places them.
    """
    position = len(PLAIN_MAGIC) + 8 + sum(_ENTRY.size + len(e.id) for e in entries)
    placed = []
    for entry in entries:
        position = -(-position // alignment) * alignment
        placed.append(BundleEntry(id=entry.id, offset=position, size=entry.size))
        position += entry.size
    return tuple(placed)


def alignment_of(entries: Sequence[BundleEntry]) -> int:
    """Return the alignment of a bundle's code in bytes, at most a page.

    GPU loaders map the code in place.
    """
    common = math.gcd(PAGE, *(e.offset for e in entries if e.size))
    return common & -common


def write_table(entries: Sequence[BundleEntry], plain: bytearray | memoryview) -> None:
    """Write the table of placed entries to the start of a bundle."""
    rows = b"".join(
        _ENTRY.pack(e.offset, e.size, len(e.id)) + e.id.encode() for e in entries
    )
    table = PLAIN_MAGIC + len(entries).to_bytes(8, "little") + rows
    plain[: len(table)] = table


def build(parts: Sequence[tuple[str, bytes]], *, alignment: int = PAGE) -> bytes:
    """Build an uncompressed bundle from (entry ID, code) pairs."""
    entries = place_entries(
        [BundleEntry(id=name, offset=0, size=len(code)) for name, code in parts],
        alignment=alignment,
    )
    plain = bytearray(max((e.offset + e.size for e in entries), default=0))
    write_table(entries, plain)
    for entry, (_, code) in zip(entries, parts, strict=True):
        plain[entry.offset : entry.offset + entry.size] = code
    return bytes(plain)


def pack(
    plain: bytes | bytearray | memoryview,
    *,
    version: int = 3,
    level: int = LEVEL,
) -> bytes:
    """Compress a bundle; output is reproducible."""
    # Similar code of different targets is megabytes apart, so the window must be that
    # large.
    window = min(27, max(10, len(plain).bit_length()))
    parameters = zstandard.ZstdCompressionParameters.from_level(
        level, source_size=len(plain), window_log=window
    )
    body = zstandard.ZstdCompressor(compression_params=parameters).compress(plain)
    digest = digest_value(hashlib.md5(plain, usedforsecurity=False).digest())
    layout = _LAYOUTS[version]
    total = layout.size + len(body)
    header = layout.pack(PACKED_MAGIC, version, _ZSTD, total, len(plain), digest)
    return header + body


@frozen
class EntrySelection:
    """Entries of a bundle to keep and to drop, and targets that no entry serves."""

    kept: tuple[BundleEntry, ...]
    dropped: tuple[BundleEntry, ...]
    missing: tuple[GfxTarget, ...]


def select_entries(
    entries: Sequence[BundleEntry], targets: Sequence[GfxTarget]
) -> EntrySelection:
    """Choose the entries to keep.

    The host's entry, and every entry that a device of a wanted target can load.

    Code that leaves a feature open runs with either setting (LLVM, "User Guide for
    AMDGPU Backend", target features). So gfx90a:xnack- keeps gfx90a and gfx90a:xnack-
    but not gfx90a:xnack+, and gfx90a keeps all three. Generic code is kept only if
    there is no exact code.
    """
    chosen = {entry for entry in entries if entry.is_host}
    missing = []
    for target in targets:
        settings = {feature[:-1]: feature for feature in target.features}
        exact = []
        generic = []
        for entry in entries:
            code = entry.target
            if not entry.size or code is None:
                continue
            if any(settings.get(f[:-1], f) != f for f in code.features):
                continue
            if code.processor == target.processor:
                exact.append(entry)
            elif target.processor in covers().get(code.processor, ()):
                generic.append(entry)
        if not (exact or generic):
            missing.append(target)
        chosen.update(exact or generic)
    kept = tuple(e for e in entries if e in chosen)
    return EntrySelection(
        kept=kept,
        dropped=tuple(e for e in entries if e not in chosen),
        missing=tuple(missing),
    )
