"""Reproducible rewriting of wheels.

Unchanged members are copied in compressed form, and RECORD is rewritten.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path

from core.digests import sha256_of
from core.errors import ArchiveError
from core.os_errors import writes_to
from wheelkit.archive.compression import compress_files
from wheelkit.archive.filename import WheelName
from wheelkit.archive.member_writer import LateContent, MemberChange, MemberWriter
from wheelkit.archive.output_file import OutFile
from wheelkit.archive.record import SIGNATURES, RecordEntry
from wheelkit.archive.wheel_archive import WheelArchive


class WrittenWheel:
    """A written wheel: its path, its size, and the RECORD rows of every member except RECORD."""

    def __init__(
        self, *, path: Path, size: int, record: Mapping[str, RecordEntry]
    ) -> None:
        self.path = path
        self.size = size
        self.record = record

    @functools.cached_property
    def sha256(self) -> str:
        """SHA-256 of the file in hexadecimal.

        Computed on first use, since it costs more than copying the wheel.
        """
        return sha256_of(self.path)


class WheelRewrite:
    """Changes to a wheel, collected first and applied by `write`.

    Member names are those of the new wheel: after `rename` a member is known by its new
    name. All members get the timestamp 1980-01-01.

    Args:
        source: old wheel, which must stay open and is not changed.
    """

    def __init__(self, source: WheelArchive) -> None:
        self._source = source
        self._dist_info = source.dist_info
        self._entries = {
            member.name: MemberChange(old=member) for member in source.members
        }
        for name in SIGNATURES:  # these files sign the old RECORD
            self._entries.pop(f"{source.dist_info}/{name}", None)

    def set(self, name: str, new: bytes | Path | LateContent) -> None:
        """Add or replace a member; an existing member keeps its mode, and a new member gets 0644.

        Args:
            new: content; a file with the content, which must exist until `write`
                returns; or a function that returns the content of a small member once
                the members before it are written.

        Raises:
            ArchiveError: the member is RECORD.
        """
        if name == f"{self._dist_info}/RECORD":
            raise ArchiveError(
                "RECORD cannot be set: it is computed from the other members."
            )
        old = self._entries.get(name, MemberChange()).old
        self._entries[name] = MemberChange(old=old, new=new)

    def rename(self, old: str, new: str) -> None:
        """Rename a folder, if it exists."""
        entries = {}
        for name, entry in self._entries.items():
            if name.startswith(f"{old}/"):
                name = new + name.removeprefix(old)
            entries[name] = entry
        self._entries = entries
        if old == self._dist_info:
            self._dist_info = new

    def write(self, out: Path) -> WrittenWheel:
        """Write the new wheel under a temporary name, check it, and rename it to `out`.

        Members keep their order. New files come before the .dist-info at the end, and
        RECORD is last (PEP 427).

        Raises:
            ArchiveError: the result is not a valid wheel with the file name of `out`, a
                member was compressed wrongly, or the source is damaged. Nothing is left
                at `out`.
        """
        # Threads share a process ID, and containers that share a folder can have equal
        # ones.
        draft = out.with_name(f".{out.name}.{os.urandom(8).hex()}")
        try:
            entries = self._ordered()
            paths = {
                name: entry.new
                for name, entry in entries
                if isinstance(entry.new, Path)
            }
            with (
                writes_to(out),
                draft.open("wb", buffering=0) as file,
                compress_files(paths) as files,
            ):
                writer = MemberWriter(self._source, OutFile(file.fileno()), files)
                for name, entry in entries:
                    writer.add(name, entry)
                writer.finish(f"{self._dist_info}/RECORD")
            with WheelArchive(draft, name=WheelName.parse(out.name)) as result:
                size = result.size
            draft.replace(out)
        finally:
            draft.unlink(missing_ok=True)
        return WrittenWheel(path=out, size=size, record=writer.record)

    def _ordered(self) -> list[tuple[str, MemberChange]]:
        record = f"{self._dist_info}/RECORD"
        names = [name for name in self._entries if name != record]
        new = [
            name
            for name in names
            if self._entries[name].old is None or callable(self._entries[name].new)
        ]
        old = [name for name in names if name not in new]
        at = len(old)
        while at and old[at - 1].startswith(f"{self._dist_info}/"):
            at -= 1
        inside = [name for name in new if name.startswith(f"{self._dist_info}/")]
        outside = [name for name in new if name not in inside]
        return [
            (name, self._entries[name])
            for name in (*old[:at], *outside, *old[at:], *inside)
        ]
