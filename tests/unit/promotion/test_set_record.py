"""wheels.json compared with the wheels: records that are true although they look unusual."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from core.model import InputFile
from promotion.gates.set_record import set_differences, url_differences
from tests.support import sets
from tests.support.wheel_sets import make_set
from tests.unit.gate_table.inspection_sets import compare_record, record

RECORD = record()
DIGEST = "7" * 64


def test_adopted_wheel_is_its_own_source() -> None:
    """Its build information has the source of the build before."""
    own = tuple(
        replace(wheel, source_sha256=wheel.sha256, source_size=wheel.size)
        for wheel in RECORD.wheel_set.wheels
    )
    adopted = replace(RECORD.wheel_set, wheels=own, inputs=())
    assert list(compare_record(replace(RECORD, wheel_set=adopted))) == []


@pytest.mark.parametrize(
    ("stamp", "message"),
    [
        (DIGEST, ""),
        ("8" * 64, "but jax_rocm7_pjrt-"),
    ],
)
def test_lock_is_compared_with_stamps_of_wheels(stamp: str, message: str) -> None:
    infos = [
        {**info, "sources": {"rocm": stamp}} if info else info for info in RECORD.infos
    ]
    request = {**RECORD.wheel_set.request, "source": {"rocm": DIGEST}}
    wheel_set = replace(RECORD.wheel_set, files={"rocm.lock": DIGEST}, request=request)
    found = [item.message for item in set_differences(wheel_set, RECORD.reports, infos)]
    assert bool(found) == bool(message)
    assert all(message in text for text in found[:1])


@pytest.mark.parametrize(
    ("url", "source"),
    [
        ("https://files.invalid/jaxlib.whl", "1" * 64),
        ("", "2" * 64),
    ],
)
def test_wheel_of_another_url_or_source_is_not_compared(
    tmp_path: Path, url: str, source: str
) -> None:
    """Only index URLs contain a digest, and a changed wheel is not the file of its URL."""
    path = tmp_path / "jaxlib.whl"
    path.write_bytes(b"content")
    url = url or f"https://files.invalid/packages/00/00/{'0' * 60}/jaxlib.whl"
    item = InputFile(filename="jaxlib.whl", size=7, sha256="1" * 64, url=url)
    wheel = sets.wheel(
        "jaxlib-1-py3-none-any.whl",
        "jaxlib",
        "1",
        sha256="1" * 64,
        source_sha256=source,
    )
    assert list(url_differences(make_set([], inputs=(item,)), wheel, path)) == []
