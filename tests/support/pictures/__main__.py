"""Program that makes the documentation's pictures again, from a new release."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ci_build.docs.docs_pages import PICTURES
from tests.support.chromium import chromium
from tests.support.pictures.recordings import DOCTOR, doctor_picture, terminal_pictures
from tests.support.pictures.screenshots import screenshots
from tests.support.terminal import ROOT

with tempfile.TemporaryDirectory() as name:
    release = Path(name) / "release"
    machine = Path(name) / "machine"
    cache = Path(name) / "cache"
    release.mkdir()
    machine.mkdir()
    argv = [
        sys.executable,
        str(ROOT / "build" / "ci_build"),
        "release",
        "--local",
        f"--cache-dir={cache}",
    ]
    subprocess.run(argv, check=True, cwd=release)
    drawn = {
        DOCTOR: doctor_picture(machine),
        **terminal_pictures(release, cache / "inputs"),
    }
    for picture, text in drawn.items():
        (ROOT / PICTURES / f"{picture}.svg").write_text(text, encoding="utf-8")
    try:
        with chromium() as tab:
            for picture, data in screenshots(release / "bucket", tab).items():
                (ROOT / PICTURES / f"{picture}.png").write_bytes(data)
    except pytest.skip.Exception as reason:
        sys.exit(f"There are no screenshots: a test of Chromium {reason}.")
