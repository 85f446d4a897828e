"""Comparison of wheels: every difference is reported by section."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.made_wheel import LIB, MadeWheel, clean_pjrt
from wheelkit.inspect.compare import compare_wheels


def differences(
    tmp_path: Path, change: Callable[[MadeWheel], object]
) -> list[tuple[str, str, str]]:
    before = clean_pjrt()
    now = clean_pjrt()
    change(now)
    paths = []
    for name, made in (("before", before), ("now", now)):
        (tmp_path / name).mkdir()
        paths.append(made.write(tmp_path / name))
    found = compare_wheels(paths[0], paths[1], tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["before", "now"], (
        "nothing is left behind"
    )
    return [(item.member, item.section, item.what) for item in found]


def put(made: MadeWheel, old: bytes, new: bytes) -> None:
    assert old in made.files[LIB]
    made.files[LIB] = made.files[LIB].replace(old, new)


def test_compare_ignores_compression(tmp_path: Path) -> None:
    assert differences(tmp_path, lambda made: setattr(made, "stored", (LIB,))) == []


@pytest.mark.parametrize(
    ("old", "new", "section", "bytes_"),
    [
        (b"fcntl64", b"fcntl99", ".dynstr", 2),
        (b"CCOB", b"CCOX", ".hip_fatbin", 2),
    ],
)
def test_compare_reports_sections_of_libraries(
    tmp_path: Path, old: bytes, new: bytes, section: str, bytes_: int
) -> None:
    ((member, where, what),) = differences(tmp_path, lambda made: put(made, old, new))
    assert member == LIB
    assert where == section
    assert what.startswith(f"{bytes_} of ")


def test_compare_reports_added_removed_and_changed_members(tmp_path: Path) -> None:
    def change(made: MadeWheel) -> None:
        del made.files["jax_plugins/xla_rocm7/__init__.py"]
        made.files["jax_plugins/xla_rocm7/more.py"] = b""
        made.files["jax_plugins/xla_rocm7/version.py"] = b"x = 1\n"

    assert differences(tmp_path, change) == [
        ("jax_plugins/xla_rocm7/__init__.py", "", "was removed"),
        ("jax_plugins/xla_rocm7/more.py", "", "was added"),
        ("jax_plugins/xla_rocm7/version.py", "", "51 bytes, now 6"),
    ]
