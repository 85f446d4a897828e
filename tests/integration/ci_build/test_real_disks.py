"""Full and read-only disks. A mount in its own namespace ends with the process."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.integration.ci_build.test_bad_input import CLI, Place
from tests.integration.ci_build.test_bad_input import place as place
from tests.support.made_rocm import VERSION
from tests.support.wheel_sets import pjrt, plugin

MOUNT = 'mount -t tmpfs -o "$1" none "$2" && shift 2 && exec "$@"'
FULL = 'mount -t tmpfs -o size=64k none "$1" && { head -c 1000000 /dev/zero >"$1/x"; shift; exec "$@"; } 2>&1'


def in_namespace(script: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script in a new mount namespace; skip the test where the machine forbids that."""
    unshare = ["unshare", "--mount", *([] if os.getuid() == 0 else ["--user", "--map-root-user"])]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("a mount namespace cannot be created here")
    argv = [*unshare, "sh", "-c", script, "sh", *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_full_disk_is_named(place: Place) -> None:
    disk = place.folder / "disk"
    disk.mkdir()
    (good := place.folder / "good").mkdir()
    wheels = [str(made.write(good)) for made in (pjrt(), plugin())]
    before = place.files()
    done = in_namespace(FULL, str(disk), *CLI, "adopt", *wheels, "--rocm-version=7.2.0", f"--out={disk}/set")
    assert done.returncode == 18, done.stdout
    assert f"error: No space left on device: the disk at {disk} is full. Free space there" in done.stdout
    assert str(good) not in done.stdout
    assert place.files() == before


@pytest.mark.parametrize("dry", [True, False])
def test_read_only_out_is_refused_before_download(place: Place, *, dry: bool) -> None:
    disk = place.folder / "disk"
    disk.mkdir()
    before = place.files()
    words = [*CLI, f"--rocm-version={VERSION}", *place.words("--therock-path={rocm}|dist_wheels")]
    words += [f"--out={disk}/set", f"--cache-dir={place.folder}/cache", *(["--dry-run"] if dry else [])]
    done = in_namespace(MOUNT, "ro", str(disk), *words)
    assert done.returncode == 2, done.stderr
    assert f"error: --out={disk}/set cannot be written: {disk}: Read-only file system." in done.stderr
    assert place.files() == before
    assert place.server.seen == []
