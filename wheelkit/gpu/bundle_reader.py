"""Bundles of the HIP fat binaries in an ELF file.

Their locations, and their content streamed in bounded memory.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import zstandard

from core.errors import FatbinError
from core.frozen import frozen
from wheelkit.elf import elf_tables as reader
from wheelkit.elf.elf_tables import ElfImage
from wheelkit.gpu.offload_bundle import (
    HEAD_LIMIT,
    PACKED_MAGIC,
    BundleEntry,
    CompressedHeader,
    digest_value,
    parse_entries,
)

THREADS = 2
"""Number of threads.

Decoding a bundle of 0.10.2 needs up to 130 MiB, plus twice the size of the new bundle.
"""
_CHUNK = 1 << 20
_ZEROS = bytes(_CHUNK)

_AGAIN = "The file is damaged. Download it again."

T = TypeVar("T")


@frozen
class BundleLocation:
    """One bundle in a file.

    Attributes:
        label: name of the file in error messages.
        index: number of the bundle in the file, from 0.
        offset: file offset of the bundle.
        address: virtual address of the bundle, with which host code registers kernels.
        size: size of the bundle in the file in bytes, header included.
        capacity: bytes up to the next bundle or the end of the section.
        packed: header of a compressed bundle; None for a plain bundle.
    """

    label: str
    index: int
    offset: int
    address: int
    size: int
    capacity: int
    packed: CompressedHeader | None

    @property
    def content_size(self) -> int:
        """Size of the uncompressed bundle in bytes."""
        return self.packed.size if self.packed else self.size

    def error(self, problem: str, hint: str = _AGAIN) -> FatbinError:
        """Return an error that names this bundle."""
        return FatbinError(
            f"{self.label}: bundle {self.index} at byte {self.offset:#x}: {problem}",
            hint=hint,
        )


def find_bundles(path: Path, *, name: str = "") -> tuple[BundleLocation, ...]:
    """Return the bundles of section .hip_fatbin in order; empty for a file without that section.

    Args:
        name: name of the file in error messages; its file name by default.

    Raises:
        ElfError: the file is not an ELF file.
        FatbinError: the section contains a damaged bundle or other data.
    """
    bundles, damage = locate_bundles(path, name=name)
    if damage:
        raise damage
    return bundles


def locate_bundles(
    path: Path, *, name: str = ""
) -> tuple[tuple[BundleLocation, ...], FatbinError | None]:
    """Return the bundles before the first damage, and the error about the damage, if any."""
    label = name or path.name
    bundles: list[BundleLocation] = []
    with path.open("rb") as file, reader.open_image(path) as image:
        section = image.section(".hip_fatbin")
        if section is None:
            return (), None
        end = section.offset + section.file_size
        position = _skip_zeros(file.fileno(), section.offset, end)
        while position < end:
            try:
                packed, size = _measure(image, position, end)
            except FatbinError as error:
                text = (
                    f"{label}: bundle {len(bundles)} is damaged, at byte {position:#x}:"
                    f" {error}"
                )
                return tuple(bundles), FatbinError(text, hint=_AGAIN)
            following = _skip_zeros(file.fileno(), position + size, end)
            bundle = BundleLocation(
                label=label,
                index=len(bundles),
                offset=position,
                address=section.address + position - section.offset,
                size=size,
                capacity=following - position,
                packed=packed,
            )
            bundles.append(bundle)
            position = following
    return tuple(bundles), None


def _measure(
    image: ElfImage, position: int, end: int
) -> tuple[CompressedHeader | None, int]:
    """Return the header and stored size of the bundle at a position."""
    head = image.read(position, min(HEAD_LIMIT, end - position))
    packed = CompressedHeader.parse(head) if head[:4] == PACKED_MAGIC else None
    if packed:
        size = packed.file_size
    else:
        size = max(
            (e.offset + e.size for e in parse_entries(head, end - position)),
            default=len(head),
        )
    if position + size > end:
        raise FatbinError("The bundle reaches beyond the section.")
    return packed, size


def _skip_zeros(file: int, position: int, end: int) -> int:
    # Not read through the mapping: a slimmed file has up to a gigabyte of zeros, which
    # would count as memory.
    while position < end:
        block = os.pread(file, min(_CHUNK, end - position), position)
        if not block or block != _ZEROS[: len(block)]:
            return position + len(block) - len(block.lstrip(b"\0"))
        position += len(block)
    return end


@dataclass(slots=True)
class BundleReader:
    """Decoder for one thread.

    It reuses its buffers, since allocating new buffers costs more than decoding.

    Attributes:
        buffer: memory for each chunk of a decoded bundle, larger than `HEAD_LIMIT`.
    """

    file: int
    buffer: memoryview = field(default_factory=lambda: memoryview(bytearray(_CHUNK)))
    zstd: zstandard.ZstdDecompressor = field(default_factory=zstandard.ZstdDecompressor)
    place: bytearray = field(default_factory=bytearray)

    def chunks(
        self, bundle: BundleLocation, *, stored: int | None = None, verify: bool = False
    ) -> Iterator[memoryview]:
        """Yield the uncompressed bundle in chunks; a chunk is valid until the next one.

        Args:
            stored: maximum number of compressed bytes to read, for callers that need
                only the beginning.
            verify: compare the MD5 of a compressed bundle with its header.

        Raises:
            FatbinError: the bundle cannot be decompressed, or its size or MD5 differs
                from the header.
        """
        done = 0
        digest = hashlib.md5(
            usedforsecurity=False
        )  # it releases the GIL, so threads overlap
        try:
            for chunk in self._raw(bundle, bundle.size if stored is None else stored):
                done += len(chunk)
                if done > bundle.content_size:
                    break
                if verify:
                    digest.update(chunk)
                yield chunk
        except zstandard.ZstdError as error:
            raise bundle.error(f"the data cannot be decompressed ({error}).") from error
        if done != bundle.content_size:
            raise bundle.error(
                f"the uncompressed size is not the {bundle.content_size} bytes in the"
                " header."
            )
        if (
            verify
            and bundle.packed
            and digest_value(digest.digest()) != bundle.packed.digest
        ):
            raise bundle.error("the content does not match the MD5 in the header.")

    def _raw(self, bundle: BundleLocation, limit: int) -> Iterator[memoryview]:
        view = self.buffer
        if bundle.packed is None:
            for start in range(0, bundle.size, len(view)):
                count = os.preadv(
                    self.file, [view[: bundle.size - start]], bundle.offset + start
                )
                yield view[:count]
            return
        header = bundle.packed.header_size
        stored = os.pread(
            self.file, min(bundle.size - header, limit), bundle.offset + header
        )
        with self.zstd.stream_reader(stored, read_size=len(stored) or 1) as stream:
            while count := stream.readinto(view):
                yield view[:count]

    def entries(self, bundle: BundleLocation) -> tuple[BundleEntry, ...]:
        """Return the entry table; only the beginning of the bundle is decoded."""
        head = b""
        for chunk in self.chunks(
            bundle, stored=4 * HEAD_LIMIT
        ):  # enough compressed bytes for any table
            head += chunk
            if len(head) >= HEAD_LIMIT:
                break
        return self._parse(bundle, head)

    def fill(
        self,
        bundle: BundleLocation,
        room: Callable[[BundleEntry], memoryview],
        *,
        verify: bool = False,
    ) -> Iterator[BundleEntry]:
        """Decode a whole bundle once, and copy its parts into the buffers of its entries.

        Args:
            room: called once per entry; returns the buffer for the entry's first bytes.
                An empty buffer skips the entry.
            verify: compare the MD5 of a compressed bundle with its header.

        Yields:
            Each entry once its buffer is full, in order of offset.

        Raises:
            FatbinError: the bundle is damaged.
        """
        pending: list[tuple[BundleEntry, memoryview]] | None = None
        position = 0
        for chunk in self.chunks(bundle, verify=verify):
            if pending is None:
                entries = sorted(
                    self._parse(bundle, bytes(chunk[:HEAD_LIMIT])),
                    key=lambda e: e.offset,
                    reverse=True,
                )
                pending = [
                    (entry, place)
                    for entry in entries
                    if entry.size and (place := room(entry))
                ]
            start = position
            position += len(chunk)
            while pending and pending[-1][0].offset < position:
                entry, place = pending[-1]
                begin = max(entry.offset, start)
                stop = min(entry.offset + len(place), position)
                place[begin - entry.offset : stop - entry.offset] = chunk[
                    begin - start : stop - start
                ]
                if entry.offset + len(place) > position:
                    break
                pending.pop()
                yield entry

    def room(self, size: int) -> memoryview:
        """Return a buffer for a new bundle, with any content.

        The buffer is valid until the next call.
        """
        if len(self.place) < size:
            self.place = bytearray(size)
        return memoryview(self.place)[:size]

    @staticmethod
    def _parse(bundle: BundleLocation, head: bytes) -> tuple[BundleEntry, ...]:
        try:
            return parse_entries(head, bundle.content_size)
        except FatbinError as error:
            raise bundle.error(error.message) from error


def map_bundles(
    path: Path,
    bundles: Sequence[BundleLocation],
    work: Callable[[BundleReader, BundleLocation], T],
    *,
    threads: int = THREADS,
) -> list[T]:
    """Run `work` on all bundles in parallel, and return the results in bundle order.

    Each thread uses memory for one decoding window (up to 128 MiB) and for the data
    that `work` keeps.
    """
    local = threading.local()
    with path.open("rb") as file, ThreadPoolExecutor(threads) as pool:

        def task(bundle: BundleLocation) -> T:
            if not hasattr(local, "reader"):
                local.reader = BundleReader(file.fileno())
            return work(local.reader, bundle)

        order = sorted(bundles, key=lambda bundle: bundle.content_size, reverse=True)
        futures = {bundle.index: pool.submit(task, bundle) for bundle in order}
        try:
            return [futures[bundle.index].result() for bundle in bundles]
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
