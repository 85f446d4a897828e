"""Golden lists: writing, reading, comparison."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.errors import FormatError
from promotion.gates.load import golden

LISTS: golden.Lists = {
    "_solver.registrations": {"getrf": "execute", "syrk": "execute prepare"},
    "handlers.ROCM": {"getrf": 1, "with.dot": 0},
}


def test_golden_list_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "list.toml"
    path.write_text(golden.dump(LISTS, part="plugin", jax_version="0.10.2"))
    assert golden.read(path) == LISTS
    assert path.read_text().startswith(
        "# What the plugin wheel for jax 0.10.2 registers."
    )


def test_differences_reports_every_kind() -> None:
    found = {
        "_solver.registrations": {"syrk": "execute", "new": "execute"},
        "_rnn.registrations": {"rnn": "execute"},
    }
    assert dict(golden.differences(LISTS, found)) == {
        "_rnn.registrations": "registers in addition rnn",
        "_solver.registrations": "does not register getrf; registers in addition new; "
        "registers otherwise syrk (execute, not execute prepare)",
        "handlers.ROCM": "does not register getrf, with.dot",
    }


@pytest.mark.parametrize("text", ["[a", "x = 1", "[a]\nb = [1]", "[a]\nb = 1.5"])
def test_damaged_list_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "list.toml"
    path.write_text(text)
    with pytest.raises(FormatError, match=r"list\.toml is not "):
        golden.read(path)


def test_digest_covers_every_list(tmp_path: Path) -> None:
    seen = {golden.digest(tmp_path)}
    for part, version, text in [
        ("plugin", "1", ""),
        ("pjrt", "1", ""),
        ("pjrt", "2", ""),
        ("pjrt", "2", "[a]"),
    ]:
        path = golden.golden_file(tmp_path, part, version)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        seen.add(golden.digest(tmp_path))
    assert len(seen) == 5
