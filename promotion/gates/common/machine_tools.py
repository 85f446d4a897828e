"""Programs and settings of this machine that the gates of one run share."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from core.process import Runner
from promotion.gates.common.installers import pip_config
from promotion.gates.common.pythons import find_pythons


class MachineTools:
    """Interpreters and pip configuration of this machine, each looked up once.

    Gates look them up before they run code of the tested wheels.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pythons: dict[str, Path | None] = {}
        self._pip_config: Mapping[str, str] | None = None

    def pythons(self, versions: Iterable[str], runner: Runner) -> Mapping[str, Path]:
        """Return the interpreters of these versions; see `find_pythons`."""
        wanted = tuple(versions)
        with self._lock:
            missing = [version for version in wanted if version not in self._pythons]
            found = find_pythons(missing, runner)
            self._pythons |= {version: found.get(version) for version in missing}
        return {
            version: path
            for version in wanted
            if (path := self._pythons[version]) is not None
        }

    def pip_config(self, runner: Runner) -> Mapping[str, str]:
        """Return the user's pip configuration; see `installers.pip_config`."""
        with self._lock:
            if self._pip_config is None:
                self._pip_config = pip_config(runner)
            return self._pip_config
