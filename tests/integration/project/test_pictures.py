"""Pictures of terminals in the documentation show the present output of the program."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci_build.docs.pages import PICTURES
from tests.integration.conftest import Released
from tests.support.pictures.drawing import comparable, text_of
from tests.support.pictures.recordings import DOCTOR, doctor_picture, terminal_pictures
from tests.support.terminal import ROOT

FOLDER = ROOT / PICTURES
AGAIN = "make the pictures again with `python -m tests.support.pictures`"


def words(svg: str) -> list[str]:
    """Return the words of a picture; lines break elsewhere if the folder of the test has a longer name."""
    return " ".join(comparable(text_of(svg))).split()


@pytest.mark.network
def test_pictures_show_what_the_program_prints(released: Released, work_cache: Path, tmp_path: Path) -> None:
    folder = tmp_path / "release"
    released.copy(folder)
    for name, svg in terminal_pictures(folder, work_cache / "inputs").items():
        assert words(svg) == words((FOLDER / f"{name}.svg").read_text()), AGAIN


def test_picture_of_the_doctor_shows_what_it_prints(tmp_path: Path) -> None:
    assert words(doctor_picture(tmp_path)) == words((FOLDER / f"{DOCTOR}.svg").read_text()), AGAIN
