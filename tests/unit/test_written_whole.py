"""Results that a command writes into a file: whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click.testing
import pytest

from ci_build.cli import main
from ci_build.cli.common import write_whole
from tests.unit.test_rocm_manifest_option import tree


def test_who_reads_the_old_file_goes_on_reading_it(tmp_path: Path) -> None:
    out, reader = tmp_path / "rocm.json", tmp_path / "reader"
    out.write_text("old")
    os.link(out, reader)
    rocm = str(tree(tmp_path / "rocm", "7.2.0-43"))
    done = click.testing.CliRunner().invoke(main, ["rocm", "manifest", rocm, f"--out={out}"])
    assert done.exit_code == 0, done.output
    assert json.loads(out.read_text())["rocm_version"] == "7.2.0"
    assert reader.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["reader", "rocm", "rocm.json"]


def test_nothing_is_left_where_it_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path / "out", b"data")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
