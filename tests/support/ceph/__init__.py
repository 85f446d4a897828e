"""A real S3 server on loopback: Ceph in a folder and in separate namespaces, without installation.

The folder is created once and kept in the cache under a digest of its recipe. This
needs root, Debian's debootstrap and 1.1 GB of disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support import forky
from tests.support.machine import free_ports

_HERE = Path(__file__).parent
_START_SECONDS = 90


@dataclass(frozen=True, kw_only=True)
class User:
    """Access keys of a user of the store."""

    name: str
    access: str
    secret: str


@dataclass(frozen=True, kw_only=True)
class Ceph:
    """A running store.

    Attributes:
        url: endpoint for S3 clients.
        owner: user who may create buckets.
    """

    url: str
    tree: Path
    data: str
    owner: User

    def user(self, name: str) -> User:
        """Create a user without permissions; a bucket's policy has to grant them."""
        return _user(self.tree, self.data, name)


def obstacle() -> str:
    """Return the reason why this machine cannot run Ceph; empty if it can."""
    return forky.obstacle()


@contextlib.contextmanager
def running() -> Iterator[Ceph]:
    """Run a store until the end of the block."""
    tree = forky.made("ceph", _HERE / "prepare.sh")
    monitor, gateway = free_ports(2)
    data = f"/srv/{os.getpid()}-{gateway}"
    outside = tree / data.lstrip("/")
    outside.mkdir(parents=True)
    shutil.copy(_HERE / "start.sh", outside / "start.sh")
    argv = [
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        f"--mount-proc={tree / 'proc'}",
    ]
    argv += [
        "chroot",
        str(tree),
        "sh",
        f"{data}/start.sh",
        data,
        str(monitor),
        str(gateway),
    ]
    log = outside / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        try:
            url = f"http://127.0.0.1:{gateway}"
            _await(url, process, log)
            yield Ceph(url=url, tree=tree, data=data, owner=_user(tree, data, "owner"))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            forky.remove(outside)


def _await(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(_START_SECONDS * 4):
        assert process.poll() is None, log.read_text(errors="replace")[-4000:]
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.25)
    raise AssertionError(
        f"Ceph did not start: {log.read_text(errors='replace')[-4000:]}"
    )


def _user(tree: Path, data: str, name: str) -> User:
    argv = [
        "chroot",
        str(tree),
        "radosgw-admin",
        "-c",
        f"{data}/ceph.conf",
        "-n",
        "client.rgw",
    ]
    argv += ["user", "create", f"--uid={name}", f"--display-name={name}"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    keys = json.loads(done.stdout)["keys"][0]
    return User(name=name, access=keys["access_key"], secret=keys["secret_key"])
