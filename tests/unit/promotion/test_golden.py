"""Golden lists: written, read, compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci_build.cli import options
from core.errors import GateError
from promotion.gates.load import golden

LISTS: golden.Lists = {
    "_solver.registrations": {"getrf": "execute", "syrk": "execute prepare"},
    "handlers.ROCM": {"getrf": 1, "with.dot": 0},
}


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "list.toml"
    path.write_text(golden.dump(LISTS, part="plugin", jax_version="0.10.2"))
    assert golden.read(path) == LISTS
    assert path.read_text().startswith("# What the plugin wheel for jax 0.10.2 registers;")


def test_the_text_does_not_depend_on_the_order() -> None:
    backwards = {section: dict(reversed(list(rows.items()))) for section, rows in reversed(list(LISTS.items()))}
    assert golden.dump(backwards, part="pjrt", jax_version="1") == golden.dump(LISTS, part="pjrt", jax_version="1")


def test_equal_lists_do_not_differ() -> None:
    assert list(golden.differences(LISTS, LISTS)) == []


def test_every_kind_of_difference_is_told() -> None:
    found = {"_solver.registrations": {"syrk": "execute", "new": "execute"}, "_rnn.registrations": {"rnn": "execute"}}
    assert dict(golden.differences(LISTS, found)) == {
        "_rnn.registrations": "registers in addition rnn",
        "_solver.registrations": "does not register getrf; registers in addition new; "
        "registers otherwise syrk (execute, not execute prepare)",
        "handlers.ROCM": "does not register getrf, with.dot",
    }


def test_an_absent_list_is_none(tmp_path: Path) -> None:
    assert golden.read(tmp_path / "none.toml") is None


@pytest.mark.parametrize("text", ["[a", "x = 1", "[a]\nb = [1]", "[a]\nb = 1.5"])
def test_a_damaged_list_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "list.toml"
    path.write_text(text)
    with pytest.raises(GateError, match=r"list\.toml is not a golden list"):
        golden.read(path)


def test_the_digest_follows_every_list(tmp_path: Path) -> None:
    seen = {golden.digest(tmp_path)}
    for part, version, text in [("plugin", "1", ""), ("pjrt", "1", ""), ("pjrt", "2", ""), ("pjrt", "2", "[a]")]:
        path = golden.golden_file(tmp_path, part, version)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        seen.add(golden.digest(tmp_path))
    assert len(seen) == 5


@pytest.mark.parametrize("path", sorted(golden.ROOT.glob("p*/golden/*.toml")), ids=str)
def test_the_lists_that_we_keep_are_as_we_would_write_them(path: Path) -> None:
    lists = golden.read(path)
    assert lists is not None
    assert golden.dump(lists, part=path.parts[-3], jax_version=path.stem) == path.read_text()


@pytest.mark.parametrize("part", golden.PARTS)
def test_there_are_lists_for_the_jax_that_is_built_by_default(part: str) -> None:
    assert golden.read(golden.golden_file(golden.ROOT, part, options.defaults()["build"]["jax_version"]))
