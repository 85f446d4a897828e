"""A real container registry on loopback: Debian's docker-registry in a temporary folder."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.support.machine import free_ports

PROGRAM = "docker-registry"
_START_SECONDS = 30


def obstacle() -> str:
    """Return the reason why this machine cannot run the registry; empty if it can."""
    return "" if shutil.which(PROGRAM) else f"needs {PROGRAM}"


@contextlib.contextmanager
def running(folder: Path) -> Iterator[str]:
    """Serve until the end of the block; yields host and port."""
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config.yml"
    config.write_text(
        "version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\n"
        f"storage: {{filesystem: {{rootdirectory: {folder / 'data'}}}}}\n"
        f"http: {{addr: '{address}'}}\n"
    )
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen([PROGRAM, "serve", config], stdout=log, stderr=log) as it,
    ):
        try:
            for _ in range(_START_SECONDS * 20):
                assert it.poll() is None, (folder / "log").read_text()
                with (
                    contextlib.suppress(OSError),
                    urllib.request.urlopen(f"http://{address}/v2/", timeout=5),
                ):
                    break
                time.sleep(0.05)
            yield address
        finally:
            it.terminate()
