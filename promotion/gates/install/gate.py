"""The install gate: pip and uv install the staged set as users do, and refuse what does not fit; Python imports it."""

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

_AT_ONCE = 2
"""Trials at a time: half of one is waiting for the disk."""


def make_gate(
    pythons: Mapping[str, Path] | None = None,
    *,
    with_: Callable[[Runner, Path], Sequence[Installer]] = configured_installers,
) -> Gate:
    """The gate.

    Args:
        pythons: interpreters by version; None looks for those of the set. Of a version that has none, the wheels are
            only unpacked, which the evidence counts as skipped.
        with_: gives the installers to use, for a folder in which they may keep what comes from the staged index.
    """

    def run(context: GateContext) -> Iterator[Check]:
        versions = context.wheel_set.python_versions
        found = find_pythons(versions, context.runner, find_uv_bin()) if pythons is None else pythons
        with _InstallationTests(context, found) as trials:
            for number, installer in enumerate(with_(context.runner, context.work / "cache")):
                # The bytes are the same, so that one environment for each Python is enough to see what jax says.
                trials.add(installer, insists=number == 0)
            yield from trials.checks()

    return Gate(name="install", tier=Tier.STRUCTURE, per_target=False, run=run)


class _InstallationTests:
    """All trials of one run, a few at a time; nothing goes on after the block."""

    def __init__(self, context: GateContext, pythons: Mapping[str, Path]) -> None:
        self._room, self._pythons = context, pythons
        key = context.staged.file(PYLOCK)
        self._lock = None if context.bucket.head(key) is None else context.bucket.get(key).decode()
        self._stopped = threading.Event()
        self._open = contextlib.ExitStack()
        self._pending: list[tuple[str, Future[tuple[Check, ...]]]] = []

    def __enter__(self) -> Self:
        self._pool = ThreadPoolExecutor(_AT_ONCE)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._pool.shutdown(cancel_futures=True)
        self._open.close()

    def add(self, installer: Installer, *, insists: bool) -> None:
        """Try an installer with each Python of the set, and with a pair that does not fit."""
        shared = self._open.enter_context(open_index(self._room)) if installer.caches else None
        for version in self._room.wheel_set.python_versions:
            what = f"install with {installer.name} for Python {version}"
            self._pending.append((what, self._pool.submit(self._install, installer, version, shared, insists)))
        what = f"resolve a wrong pair with {installer.name}"
        self._pending.append((what, self._pool.submit(self._pair, installer, shared)))

    def checks(self) -> Iterator[Check]:
        """The checks, in the order in which the trials were added."""
        for what, future in self._pending:
            self._room.progress.step(what)
            yield from future.result()

    def _install(
        self, installer: Installer, version: str, shared: StagedIndex | None, insists: bool
    ) -> tuple[Check, ...]:
        with self._index(shared) as index, tempfile.TemporaryDirectory(dir=self._room.work) as folder:
            wheels = [wheel.filename for wheel in wheels_for(self._room.wheel_set, version)]
            source = InstallationSource(
                index=index.url,
                wheel_set=self._room.wheel_set,
                lock=self._lock,
                came=lambda: index.require(wheels),
            )
            trial = InstallationTest(
                source,
                self._room.runner,
                installer,
                version,
                Path(folder),
                insists=insists,
                wanted=lambda: not self._stopped.is_set(),
            )
            return tuple(trial.checks(self._pythons.get(version)))

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
        """The index that all trials of an installer share, or else one for this trial, which tells what it took."""
        if shared is not None:
            yield shared
        else:
            with open_index(self._room) as index:
                yield index
