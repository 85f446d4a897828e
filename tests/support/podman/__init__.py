"""A real podman with a separate store, without a daemon, and images that need no registry.

What it keeps lies in the cache, so each image is made once. Containers have the host's network or none. Needs root,
Debian's podman and what `tests.support.forky` needs.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.support import forky
from tests.support.engines import Engine

CLIENT = "/usr/bin/podman"
_HERE = Path(__file__).parent
_FOLDER = forky.CACHE / "podman"
_STATE = Path("/run/jax-rocm-release-podman")
"""What has to be forgotten when the machine starts anew."""
_INIT = Path("/usr/libexec/podman/catatonit")


@dataclass(frozen=True, kw_only=True)
class Podman(Engine):
    """A podman whose settings are those of `made`."""

    program: str = CLIENT

    @property
    def environment(self) -> dict[str, str]:
        """This process's, with our storage and our settings."""
        settings = {name: str(_FOLDER / f"{name.lower()}.toml") for name in _SETTINGS}
        return {**os.environ, **settings}

    def builder(self) -> str:
        """An image in which the compiler of a mounted ROCm runs, by name; see builder.sh."""
        return self.image("builder", _HERE / "builder.sh")


_SETTINGS = {
    "CONTAINERS_STORAGE_CONF": f"""
[storage]
driver = "overlay"
graphroot = "{_FOLDER / "storage"}"
runroot = "{_STATE / "storage"}"
""",
    "CONTAINERS_CONF": f"""
[containers]
# podman would raise both, which not every root may do.
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
runtime = "runc"
tmp_dir = "{_STATE / "state"}"
""",
}
"""Variable -> what is in the file that it names: containers-storage.conf(5) and containers.conf(5)."""


def obstacle() -> str:
    """Why this machine cannot run it; empty if it can."""
    missing = [word for word in (CLIENT, str(_INIT), "runc") if shutil.which(word) is None]
    return forky.obstacle() or (f"needs {', '.join(missing)}" if missing else "")


def made() -> Podman:
    """That podman, with its settings in place."""
    for folder in (_FOLDER, _STATE):
        folder.mkdir(parents=True, exist_ok=True)
    podman = Podman()
    for name, text in _SETTINGS.items():
        path = Path(podman.environment[name])
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        fresh.write_text(text)
        fresh.replace(path)
    return podman
