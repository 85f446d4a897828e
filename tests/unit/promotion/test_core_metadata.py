"""Core metadata of wheels and of damaged archives."""

from __future__ import annotations

import io
import zipfile

import pytest

from core.errors import ArchiveError
from promotion.index.core_metadata import core_metadata

NAME = "p-1.dist-info/METADATA"
TEXT = b"Metadata-Version: 2.1\nName: p\nVersion: 1\n"


def wheel(*names: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, TEXT)
    return file.getvalue()


def test_core_metadata_reads_metadata() -> None:
    assert core_metadata(io.BytesIO(wheel(NAME, "p/__init__.py")), "p.whl") == TEXT


@pytest.mark.parametrize(
    "data",
    [
        wheel("p/x"),
        wheel(NAME, "q-1.dist-info/METADATA"),
        wheel(NAME)[:-30],
    ],
    ids=["none", "two", "cut off"],
)
def test_core_metadata_names_damaged_wheel(data: bytes) -> None:
    with pytest.raises(ArchiveError, match=r"^p\.whl "):
        core_metadata(io.BytesIO(data), "p.whl")
