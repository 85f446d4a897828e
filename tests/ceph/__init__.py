"""A real S3 server on loopback: Ceph, in a folder and in namespaces of its own, so that it needs no installation.

Made once and kept in the cache under a digest of its recipe; needs root, Debian's debootstrap and 1.1 GB of disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import platformdirs
from filelock import FileLock

_HERE = Path(__file__).parent
_CACHE = platformdirs.user_cache_path("jax-rocm-release")
_PREPARE_SECONDS, _START_SECONDS = 900, 90


@dataclass(frozen=True, kw_only=True)
class User:
    """Keys of somebody who may use the store."""

    name: str
    access: str
    secret: str


@dataclass(frozen=True, kw_only=True)
class Ceph:
    """A running store.

    Attributes:
        url: endpoint for S3 clients.
        owner: may create buckets.
    """

    url: str
    tree: Path
    data: str
    owner: User

    def user(self, name: str) -> User:
        """A new user, who may do nothing until a bucket's policy says so."""
        return _user(self.tree, self.data, name)


def obstacle() -> str:
    """Why this machine cannot run it; empty if it can."""
    if os.geteuid() != 0:
        return "needs root, for chroot"
    missing = [word for word in ("debootstrap", "unshare", "apt-get") if shutil.which(word) is None]
    return f"needs {', '.join(missing)}" if missing else ""


def prepared() -> Path:
    """The folder with Ceph in it."""
    recipe = hashlib.sha256((_HERE / "prepare.sh").read_bytes()).hexdigest()[:12]
    tree = _CACHE / f"ceph-{recipe}"
    _CACHE.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{tree}.lock"):
        if tree.exists():
            return tree
        fresh = tree.with_suffix(".new")
        subprocess.run(["rm", "-rf", "--one-file-system", fresh], check=True)
        argv = ["sh", str(_HERE / "prepare.sh"), str(fresh), _mirror()]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_PREPARE_SECONDS)
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        fresh.rename(tree)
    return tree


def _mirror() -> str:
    """Where this machine gets Debian's packages."""
    argv = ["apt-get", "indextargets", "--format", "$(SITE) $(REPO_URI)", "Created-By: Packages", "Component: main"]
    listed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    found = [url.rstrip("/") for url in listed[1::2] if url.rstrip("/").endswith("/debian")]
    assert found, "apt knows no mirror of Debian"
    return found[0]


@contextlib.contextmanager
def running() -> Iterator[Ceph]:
    """Start it, and end all of it afterwards."""
    tree = prepared()
    monitor, gateway = _free_ports(2)
    data = f"/srv/{os.getpid()}-{gateway}"
    outside = tree / data.lstrip("/")
    outside.mkdir(parents=True)
    shutil.copy(_HERE / "start.sh", outside / "start.sh")
    argv = ["unshare", "--mount", "--pid", "--fork", "--kill-child", f"--mount-proc={tree / 'proc'}"]
    argv += ["chroot", str(tree), "sh", f"{data}/start.sh", data, str(monitor), str(gateway)]
    log = outside / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
        try:
            url = f"http://127.0.0.1:{gateway}"
            _await(url, process, log)
            yield Ceph(url=url, tree=tree, data=data, owner=_user(tree, data, "owner"))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            subprocess.run(["rm", "-rf", "--one-file-system", outside], check=True)


def _await(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(_START_SECONDS * 4):
        assert process.poll() is None, log.read_text(errors="replace")[-4000:]
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.25)
    raise AssertionError(f"Ceph did not start: {log.read_text(errors='replace')[-4000:]}")


def _user(tree: Path, data: str, name: str) -> User:
    argv = ["chroot", str(tree), "radosgw-admin", "-c", f"{data}/ceph.conf", "-n", "client.rgw"]
    argv += ["user", "create", f"--uid={name}", f"--display-name={name}"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    keys = json.loads(done.stdout)["keys"][0]
    return User(name=name, access=keys["access_key"], secret=keys["secret_key"])


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for item in sockets:
            item.bind(("127.0.0.1", 0))
        return [item.getsockname()[1] for item in sockets]
