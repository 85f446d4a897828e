"""Test of a program that locks: its lock must name the set's files, and the set must be installable from the lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from core.process import Runner
from promotion.gates.common.gate import Check
from promotion.gates.common.installers import Pip
from promotion.gates.install.installation import InstallationError, InstallationSource, InstallationTest
from promotion.gates.install.lockers import LockedProject, Locker


class LockingTest(InstallationTest):
    """Test of one program that locks, with one Python version; arguments as for `InstallationTest`.

    Args:
        locker: the program.
    """

    def __init__(
        self,
        source: InstallationSource,
        runner: Runner,
        locker: Locker,
        version: str,
        folder: Path,
        *,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(source, runner, Pip(), version, folder, is_wanted=is_wanted)
        self._locker, self._project = locker, folder / "project"

    @property
    def program(self) -> str:
        """Name and version of the program that locks."""
        return f"{self._locker.name} {self._locker.version}"

    def checks(self, python: Path | None) -> Iterator[Check]:
        """Lock a project that requires the set, and install it from the lock; skipped without an interpreter."""
        where = f"{self._locker.name} for Python {self.version}"
        if python is None or self._locker.unusable:
            yield Check(name=f"lock with {where}", skipped=self._locker.unusable or f"no Python {self.version}")
            return
        locked = self._check(f"lock with {where}", lambda: self._lock(python))
        yield locked
        if not locked.failed:
            yield self._check(f"installation from the lock of {where}", self._install_locked)

    def _lock(self, python: Path) -> Mapping[str, Any]:
        wheel_set, environment = self.source.wheel_set, self.folder / "environment"
        own = {wheel.name: wheel.version for wheel in self.wheels}
        project = LockedProject(python=self.version, own=own, others=wheel_set.pins, index=self.source.index)
        self._project.mkdir()
        (self._project / "pyproject.toml").write_text(self._locker.pyproject(project))
        self._run("environment-failed", self.installer.create(python, environment))
        self._run("lock-failed", self._locker.lock(environment, self.folder), cwd=self._project)
        try:
            locked = self._locker.locked((self._project / self._locker.lock_file).read_text())
        except (OSError, ValueError) as problem:
            raise InstallationError("lock-failed", f"{problem}.") from problem
        ours = {wheel.sha256 for wheel in wheel_set.wheels}
        for wheel in self.wheels:
            versions = locked.get(wheel.name, {})
            hashes = versions.get(wheel.version, frozenset())
            if [*versions] != [wheel.version] or wheel.sha256 not in hashes or hashes - ours:
                found = "; ".join(f"{number}: {', '.join(sorted(files))}" for number, files in versions.items())
                text = f"the lock has {wheel.name} {found or 'not at all'}, not {wheel.filename} with {wheel.sha256}."
                raise InstallationError("lock-elsewhere", text)
        return {"locked": sorted(locked)}

    def _install_locked(self) -> Mapping[str, Any]:
        environment = self.folder / "environment"
        self._run("install-failed", self._locker.install(environment, self.folder), cwd=self._project)
        self.source.verify_origin()
        self._run("install-inconsistent", self.installer.check(self._python))
        answer, _ = self._probe(self._python, self._question(imports=True))
        return {"installed": answer["installed"]}
