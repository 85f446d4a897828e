"""A real podman with a separate store, without a daemon, and images that need no registry.

The store is in the cache, so each image is built once. Containers have the host's
network or none. podman needs root, Debian's podman and the requirements of
`tests.support.forky`.
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
"""Folder of state that must be lost when the machine restarts."""
_INIT = Path("/usr/libexec/podman/catatonit")


@dataclass(frozen=True, kw_only=True)
class Podman(Engine):
    """A podman with the settings that `made` writes."""

    program: str = CLIENT

    @property
    def environment(self) -> dict[str, str]:
        """Environment of this process, with the tests' storage and settings."""
        settings = {name: str(_FOLDER / f"{name.lower()}.toml") for name in _SETTINGS}
        return {**os.environ, **settings}

    def builder(self) -> str:
        """Return the name of an image in which the compiler of a mounted ROCm runs.

        See builder.sh.
        """
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
# podman would raise both limits, which root may not be allowed to do.
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
runtime = "runc"
tmp_dir = "{_STATE / "state"}"
""",
}
"""Variable -> content of the file that it names.

Containers-storage.conf(5) and containers.conf(5).
"""


def obstacle() -> str:
    """Return the reason why this machine cannot run podman; empty if it can."""
    missing = [
        word for word in (CLIENT, str(_INIT), "runc") if shutil.which(word) is None
    ]
    return forky.obstacle() or (f"needs {', '.join(missing)}" if missing else "")


def made() -> Podman:
    """Return podman with its settings written."""
    for folder in (_FOLDER, _STATE):
        folder.mkdir(parents=True, exist_ok=True)
    podman = Podman()
    for name, text in _SETTINGS.items():
        path = Path(podman.environment[name])
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        fresh.write_text(text)
        fresh.replace(path)
    return podman
