"""An index in a folder that changes while pip and uv install from it."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from uv import find_uv_bin

from promotion.index.operations import rollback
from promotion.index.serve import IndexServer
from promotion.storage.directory_bucket import DirBucket
from tests.support.machine import user_environment
from tests.support.promoting import NOW, RELEASED, go, staged_in
from tests.support.wheel_sets import make_wheels, ordinary_index

OWN = "{}.{}".format(*sys.version_info[:2])
COUNT = 4


@pytest.mark.parametrize("client", ["pip", "uv"])
def test_installers_always_find_consistent_set(tmp_path: Path, client: str) -> None:
    bucket = DirBucket(tmp_path / "bucket")
    sets = []
    for minor in range(COUNT):
        wheels = make_wheels(
            tmp_path / "w", version=f"0.10.2+rocm7.{minor}.0", pythons=(OWN,)
        )
        sets.append(staged_in(bucket, tmp_path / "sets", wheels))
    go(bucket, sets[0])
    ordinary = ordinary_index(tmp_path / "ordinary")
    stop = threading.Event()

    def change() -> None:
        for staged in sets[1:]:
            go(bucket, staged)
        while not stop.wait(0.1):
            for entry in (1, COUNT):
                rollback(
                    bucket,
                    RELEASED,
                    to=entry,
                    reason="to see",
                    now=lambda: NOW,
                )

    with IndexServer(bucket.root) as server:
        changing = threading.Thread(target=change)
        changing.start()
        try:
            simple = server.url + RELEASED.simple
            chosen = [
                resolved(client, simple, ordinary, tmp_path / f"out-{number}")
                for number in range(5)
            ]
        finally:
            stop.set()
            changing.join()
    assert all(version.startswith("0.10.2+rocm7.") for version in chosen), chosen


def resolved(
    client: str,
    simple: str,
    ordinary: Path,
    out: Path,
) -> str:
    """Return the version of the plugin that an installer resolves.

    Its pjrt must have the same version.
    """
    out.mkdir()
    if client == "pip":
        argv = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--dest",
            str(out),
            "--no-cache-dir",
            "--only-binary=:all:",
        ]
        argv += ["jax-rocm7-plugin"]
    else:
        (out / "in.txt").write_text("jax-rocm7-plugin\n")
        argv = [
            find_uv_bin(),
            "pip",
            "compile",
            str(out / "in.txt"),
            "--no-cache",
            "--python-version",
            OWN,
        ]
        argv += ["--no-header", "--no-annotate", "--output-file", str(out / "out.txt")]
        argv += ["--index-strategy", "unsafe-best-match"]
    argv += ["--index-url", simple, "--find-links", str(ordinary)]
    done = subprocess.run(
        argv,
        env=user_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if client == "uv":
        pins = dict(line.split("==") for line in (out / "out.txt").read_text().split())
    else:
        pins = {
            path.name.split("-")[0].replace("_", "-"): path.name.split("-")[1]
            for path in out.glob("*.whl")
        }
    assert pins["jax-rocm7-pjrt"] == pins["jax-rocm7-plugin"]
    return pins["jax-rocm7-plugin"]
