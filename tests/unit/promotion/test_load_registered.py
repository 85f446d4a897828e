"""Device code that a library registers when loaded, compared with that in its file."""

from __future__ import annotations

from pathlib import Path

from promotion.gates.load.registered import registration_findings
from tests.unit.gate_table.load import MAGIC, NAMES, Registered, check_registered


def test_kernels_with_unread_names_are_not_compared(tmp_path: Path) -> None:
    bundles = [(MAGIC, 1, [*NAMES[0], "_Z5otherv"]), (MAGIC, 1, NAMES[1])]
    assert (
        list(
            check_registered(
                Registered(bundles=bundles, form={"nameless": 1}), tmp_path
            )
        )
        == []
    )


def test_damaged_library_is_left_to_other_gates(tmp_path: Path) -> None:
    (tmp_path / "lib.so").write_bytes(b"no library")
    assert (
        list(registration_findings("x.whl: lib.so", "lib.so", tmp_path / "lib.so", {}))
        == []
    )
