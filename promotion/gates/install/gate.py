"""The install gate: pip and uv install the staged set as users do, and reject incompatible versions of jaxlib."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Self

from uv import find_uv_bin

from core.model import PYLOCK, Tier
from core.process import Runner
from promotion.gates.common.gate import Check, Gate, GateContext
from promotion.gates.common.installers import Installer, configured_installers
from promotion.gates.common.pythons import find_pythons
from promotion.gates.common.requirements import wheels_for
from promotion.gates.install.installation import InstallationSource, InstallationTest
from promotion.gates.install.pair import check_pair
from promotion.gates.install.serving import StagedIndex, open_index

_MOST_TESTS = 2
"""Installations at the same time; each waits for the disk half of the time."""


def make_gate(
    pythons: Mapping[str, Path] | None = None,
    *,
    with_: Callable[[Runner, Path], Sequence[Installer]] = configured_installers,
) -> Gate:
    """Return the gate.

    Args:
        pythons: interpreters by version; None searches for those of the set. Without an interpreter the wheels are
            only unpacked, and the check counts as skipped.
        with_: returns the installers, given a directory for their caches.
    """

    def run(context: GateContext) -> Iterator[Check]:
        versions = context.wheel_set.python_versions
        found = find_pythons(versions, context.runner, find_uv_bin()) if pythons is None else pythons
        with _InstallationTests(context, found) as tests:
            for number, installer in enumerate(with_(context.runner, context.work / "cache")):
                # All installers install the same files, so one of them checks the messages of the loader.
                tests.add(installer, check_loader=number == 0)
            yield from tests.checks()

    return Gate(name="install", tier=Tier.STRUCTURE, per_target=False, run=run)


class _InstallationTests:
    """All installation tests of one run, a few at a time; leaving the context stops them."""

    def __init__(self, context: GateContext, pythons: Mapping[str, Path]) -> None:
        self._room, self._pythons = context, pythons
        key = context.staged.file(PYLOCK)
        self._lock = None if context.bucket.head(key) is None else context.bucket.get(key).decode()
        self._stopped = threading.Event()
        self._stack = contextlib.ExitStack()
        self._pending: list[tuple[str, Future[tuple[Check, ...]]]] = []

    def __enter__(self) -> Self:
        self._pool = ThreadPoolExecutor(_MOST_TESTS)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._pool.shutdown(cancel_futures=True)
        self._stack.close()

    def add(self, installer: Installer, *, check_loader: bool) -> None:
        """Start the tests of an installer: each Python of the set, and an incompatible pair."""
        shared = self._stack.enter_context(open_index(self._room)) if installer.caches else None
        for version in self._room.wheel_set.python_versions:
            title = f"install with {installer.name} for Python {version}"
            self._pending.append((title, self._pool.submit(self._install, installer, version, shared, check_loader)))
        title = f"resolve a wrong pair with {installer.name}"
        self._pending.append((title, self._pool.submit(self._pair, installer, shared)))

    def checks(self) -> Iterator[Check]:
        """Yield the checks in the order in which the tests were added."""
        for title, future in self._pending:
            self._room.progress.step(title)
            yield from future.result()

    def _install(
        self, installer: Installer, version: str, shared: StagedIndex | None, check_loader: bool
    ) -> tuple[Check, ...]:
        with self._index(shared) as index, tempfile.TemporaryDirectory(dir=self._room.work) as folder:
            wheels = [wheel.filename for wheel in wheels_for(self._room.wheel_set, version)]
            source = InstallationSource(
                index=index.url,
                wheel_set=self._room.wheel_set,
                lock=self._lock,
                verify_origin=lambda: index.require(wheels),
            )
            test = InstallationTest(
                source,
                self._room.runner,
                installer,
                version,
                Path(folder),
                check_loader=check_loader,
                is_wanted=lambda: not self._stopped.is_set(),
            )
            return tuple(test.checks(self._pythons.get(version)))

    def _pair(self, installer: Installer, shared: StagedIndex | None) -> tuple[Check, ...]:
        version = next((v for v in self._room.wheel_set.python_versions if v in self._pythons), "")
        if not version:
            return (Check(name=f"wrong pair with {installer.name}", skipped="no Python of the set on this machine"),)
        with self._index(shared) as index, tempfile.TemporaryDirectory(dir=self._room.work) as folder:
            context = self._room
            python = self._pythons[version]
            return (check_pair(context.wheel_set, index.url, context.runner, installer, version, python, Path(folder)),)

    @contextlib.contextmanager
    def _index(self, shared: StagedIndex | None) -> Iterator[StagedIndex]:
        """Open the index that all tests of an installer share, or one for this test that records the downloads."""
        if shared is not None:
            yield shared
        else:
            with open_index(self._room) as index:
                yield index
