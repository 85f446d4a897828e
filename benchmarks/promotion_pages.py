"""Cost of rewriting a project's pages with thousands of files, and their served size."""

from __future__ import annotations

import time
from dataclasses import dataclass
from email.message import Message
from pathlib import Path

from benchmarks.made_index import BEGIN, TIERS, MadeIndex
from core.digests import sha256_of
from promotion.evidence.evidence import TIME
from promotion.index.index_reader import IndexedWheel, parse_project_page
from promotion.index.ledger_wheel import LedgerWheel
from promotion.index.pages import link, project_pair
from promotion.index.serve import answer_to
from promotion.index.served_files import FolderFiles
from promotion.storage.object_keys import ReleasedIndex

FILES = 5_000


@dataclass(frozen=True, kw_only=True, slots=True)
class LongPage:
    """Cost of a project with many files.

    Attributes:
        seconds: CPU time to read its JSON page, add a wheel, and render both pages.
        size: bytes of both pages.
        sent: bytes of both pages as they are served to a client that accepts gzip.
    """

    files: int
    seconds: float
    size: int
    sent: int


def rewriting(folder: Path, files: int = FILES) -> LongPage:
    """Measure the pages of a project with this many files."""
    index = MadeIndex(ReleasedIndex(index="long"), 3)
    rows: list[IndexedWheel] = []
    while len(rows) <= files:
        rows += _next_rows(index)
    *old, new = rows[: files + 1]
    project = new.wheel.project
    simple = index.released.simple
    before = project_pair(simple, project, old)[1].data
    begin = time.process_time()
    pages = project_pair(simple, project, [*parse_project_page(before), new])
    seconds = time.process_time() - begin
    asked = Message()
    sent = 0
    asked["Accept-Encoding"] = "gzip"
    for page in pages:
        name = page.key.rpartition("/")[2]
        (folder / name).write_bytes(page.data)
        answer = answer_to(FolderFiles(folder), name, asked)
        assert answer.file is not None
        answer.file.close()
        sent += answer.length
    return LongPage(
        files=files,
        seconds=seconds,
        size=sum(len(page.data) for page in pages),
        sent=sent,
    )


def _next_rows(index: MadeIndex) -> list[IndexedWheel]:
    """Return the plugins of a further set."""
    index.sets += 1
    return [
        IndexedWheel(
            wheel=LedgerWheel.of(wheel, metadata_sha256=sha256_of(b"metadata")),
            href=link(
                index.released.simple,
                wheel.name,
                index.released.wheel(wheel.name, wheel.filename),
            ),
            uploaded=BEGIN.strftime(TIME),
            set_digest=f"{index.sets:064x}",
            tier="structure",
            tiers=TIERS,
            sets=(index.sets,),
        )
        for wheel in index.wheel_set().wheels
        if wheel.name.endswith("-plugin")
    ]
