"""Record of the libraries that are read, since reading one takes up to half a second."""

from __future__ import annotations

import pytest

from wheelkit.elf import snapshot
from wheelkit.elf.reader import ElfImage
from wheelkit.elf.snapshot import Elf


def record_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the files of which snapshots are made from now on."""
    read, original = list[str](), snapshot._snapshot

    def recorded(image: ElfImage) -> Elf:
        read.append(image.label)
        return original(image)

    monkeypatch.setattr(snapshot, "_snapshot", recorded)
    return read
