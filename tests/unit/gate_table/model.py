"""A row of the table.

An input without faults, one change of it, and the code that the gate must report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.model import Finding


@dataclass(frozen=True, eq=False)
class Scene:
    """An input of a gate without faults, and the function of the gate that judges it.

    Attributes:
        make: returns the input, which an edit may change; the folder is for its files.
        judge: returns the gate's findings on an input.
    """

    make: Callable[[Path], Any]
    judge: Callable[[Any, Path], Iterable[Finding]]


@dataclass(frozen=True, eq=False)
class Row:
    """One fault.

    Attributes:
        gate: name of the gate.
        code: code that the gate must report.
        fault: name of the fault, unique for the gate and the code.
        edit: changes the input in place, or returns another input of the same type.
        says: key phrase of the message, for codes of several checks.
    """

    gate: str
    code: str
    fault: str
    scene: Scene
    edit: Callable[[Any], object]
    says: str = ""

    def findings(self, folder: Path) -> list[Finding]:
        """Return the findings of the gate on the broken input."""
        good = self.scene.make(folder)
        edited = self.edit(good)
        broken = edited if isinstance(edited, type(good)) else good
        return list(self.scene.judge(broken, folder))


def folder_of(parent: Path, name: str) -> Path:
    """Create a folder and return it."""
    folder = parent / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder
