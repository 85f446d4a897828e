"""Program that writes the fault matrix into the README of the gates."""

from __future__ import annotations

from tests.support.faults.matrix import README, with_table

README.write_text(with_table(README.read_text()))
