"""Archives that this program wrote.

`tests/unit/gate_table` has archives that were changed later.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.made_wheel import clean_pjrt
from wheelkit.archive.canonical import check_canonical
from wheelkit.archive.rewrite import WheelRewrite
from wheelkit.archive.wheel_archive import WheelArchive


def test_written_archive_is_canonical(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    made = clean_pjrt()
    with WheelArchive(made.write(tmp_path)) as source:
        written = WheelRewrite(source).write(out / made.filename)
    with WheelArchive(written.path) as archive:
        assert check_canonical(archive) == {}
