"""Pictures of terminals in the documentation show the present output of the program."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ci_build.docs.docs_pages import PICTURES
from tests.integration.conftest import Released
from tests.support.pictures.recordings import DOCTOR, doctor_picture, terminal_pictures
from tests.support.terminal import ROOT

FOLDER = ROOT / PICTURES
CHARACTER = 20 * 0.61
"""Width of a character in pictures of rich."""
VARYING = (
    (re.compile(r"\b([0-9a-f]{64}|[0-9a-f]{16}|[0-9a-f]{12})\b"), "DIGEST"),
    (re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d)?)?Z?"), "TIME"),
    (re.compile(r"\w[\w.-]*(@[\w.-]+|, run \d+)"), "USER"),
    (re.compile(r"(?<=Python )\d+\.\d+\.\d+"), "VERSION"),
    (re.compile(r"(?<![\w.+-])\d+(\.\d+)?(?![\w+]|\.\d)"), "#"),
    (re.compile(r"# (B|kB|MB|GB)\b"), "# BYTES"),
    (re.compile(r"[─ ]+"), " "),
)
"""What differs between runs and machines.

Digests, times, users, counts, sizes and the widths of columns.
"""
AGAIN = "make the pictures again with `python -m tests.support.pictures`"


def text_of(svg: str) -> list[str]:
    """Return the lines of a picture of a terminal."""
    lines: dict[str, str] = {}
    for part in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"):
        # Lines of the terminal have a clip path each.
        if line := part.get("clip-path"):
            column = round(float(part.get("x", "0")) / CHARACTER)
            lines[line] = lines.get(line, "").ljust(column) + (part.text or "").replace(
                "\xa0", " "
            )
    return list(lines.values())


def words(svg: str) -> list[str]:
    """Return the words of a picture without what differs between runs.

    Lines break elsewhere if the folder of the test has a longer name.
    """
    found = []
    for line in text_of(svg):
        for pattern, replacement in VARYING:
            line = pattern.sub(replacement, line)
        found.append(line)
    return " ".join(found).split()


@pytest.mark.network
def test_pictures_show_what_the_program_prints(
    released: Released, work_cache: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "release"
    released.copy(folder)
    for name, svg in terminal_pictures(folder, work_cache / "inputs").items():
        assert words(svg) == words((FOLDER / f"{name}.svg").read_text()), AGAIN


def test_picture_of_the_doctor_shows_what_it_prints(tmp_path: Path) -> None:
    assert words(doctor_picture(tmp_path)) == words(
        (FOLDER / f"{DOCTOR}.svg").read_text()
    ), AGAIN
