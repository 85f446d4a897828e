"""The checkers that `build/test` runs in the background."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.__main__ import CHECKS, Checks


def test_checkers_start_while_the_environment_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "checker"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    names = [f"checker {number}" for number in range(60)]
    for name in names:
        monkeypatch.setitem(CHECKS, name, ("checker",))
    lines: list[str] = []
    with ThreadPoolExecutor(max_workers=1) as pool:
        shown = pool.submit(Checks(names).show, *names, write=lines.append)
        while not shown.done():
            with monkeypatch.context() as changed:
                changed.setenv("CHECKERS_TEST", "1")
        shown.result()
    assert [line.partition(" in ")[0] for line in lines] == [f"{name}: passed" for name in names]
