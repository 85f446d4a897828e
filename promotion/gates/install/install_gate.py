"""The install gate.

Installers install the staged set as users do, and reject incompatible versions of
jaxlib.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path

from core.model import PYLOCK, Tier
from core.process import Runner
from promotion.gates.common.gate_context import Check, Gate, GateContext
from promotion.gates.common.gate_site import site_for
from promotion.gates.common.set_requirements import wheels_for
from promotion.gates.common.uv_installer import Installer, Uv
from promotion.gates.install.installation import (
    InstallationError,
    InstallationSource,
    InstallationTest,
)
from promotion.gates.install.installer_table import (
    ALL,
    NEWEST,
    configured_installers,
    installer_versions,
)
from promotion.gates.install.pair import check_pair
from promotion.gates.install.stand_ins import write_rocm_index
from promotion.index.pages import metadata_name
from promotion.index.rocm_packages import extras_of
from promotion.index.serve import IndexServer, Served
from promotion.storage.bucket import fetch_to
from promotion.storage.directory_bucket import DirBucket

_MOST_TESTS = 2
"""Maximum number of concurrent installations; each waits for the disk half of the time."""


def make_gate(
    pythons: Mapping[str, Path] | None = None,
    *,
    installers: str = NEWEST,
    cache: Path | None = None,
    with_: Callable[[Runner, Path], Sequence[Installer]] | None = None,
) -> Gate:
    """Return the gate.

    Args:
        pythons: interpreters by version; None searches for the versions of the set.
            Without an interpreter the check is skipped.
        installers: NEWEST or ALL.
        cache: the user's cache, which keeps the environments of installers; None
            installs them in every run.
        with_: function that returns the installers instead, which may use the given
            directory for caches.
    """
    versions_of = installer_versions(installers)

    def find_installers(context: GateContext) -> Sequence[Installer]:
        folder = context.work / "cache"
        if with_ is not None:
            return with_(context.runner, folder)
        return configured_installers(
            context.runner, folder, installers, cache, config=context.pip_config()
        )

    def run(context: GateContext) -> Iterator[Check]:
        versions = context.wheel_set.python_versions
        available = context.pythons() if pythons is None else pythons
        with contextlib.ExitStack() as stack:
            # Tests with a common cache share an index; other tests have separate
            # indexes, which record the downloads.
            indexes = [
                (
                    installer,
                    stack.enter_context(_open_index(context))
                    if installer.caches
                    else None,
                )
                for installer in find_installers(context)
                if supported(installer, versions)
            ]
            html = stack.enter_context(_open_index(context, static=True))
            write_rocm_index(context.work / "rocm", context.wheel_set)
            rocm = stack.enter_context(IndexServer(context.work / "rocm"))
            uv = next((one for one, _ in indexes if isinstance(one, Uv)), None)
            tests = _InstallationTests(
                context,
                available,
                html.url,
                f"{rocm.url}simple/",
                None if installers == ALL else uv,
            )
            pool = ThreadPoolExecutor(_MOST_TESTS)
            stack.callback(pool.shutdown, cancel_futures=True)
            stack.callback(tests.stopped.set)
            pending: list[Future[tuple[Check, ...]]] = []

            def start(
                title: str, test: Callable[..., tuple[Check, ...]], *arguments: object
            ) -> None:
                def run_test() -> tuple[Check, ...]:
                    with context.progress.task(title):
                        return test(*arguments)

                pending.append(pool.submit(run_test))

            for number, (installer, index) in enumerate(indexes):
                for version in supported(installer, versions):
                    title = f"install with {installer.name} for Python {version}"
                    start(title, tests.install, installer, version, index, number == 0)
                # Both read the same metadata, and uv does it 20 times as fast.
                if installers == ALL or installer is uv or uv is None:
                    title = f"resolve a wrong pair with {installer.name}"
                    start(title, tests.pair, installer, index)
            for future in pending:
                yield from future.result()

    shown = ", ".join(f"{name} {version}" for name, version in versions_of.items())
    settings = {"installers": installers, "installer_versions": shown}
    return Gate(
        name="install",
        tier=Tier.STRUCTURE,
        per_target=False,
        runs_wheels=True,
        run=run,
        settings=settings,
    )


def supported(installer: Installer, versions: Sequence[str]) -> tuple[str, ...]:
    """Return the Python versions that an installer supports."""
    return tuple(
        version
        for version in versions
        if installer.pythons is None or version in installer.pythons
    )


class _StagedIndex:
    """A running index of a staged set."""

    def __init__(
        self, root: Path, context: GateContext, *, static: bool = False
    ) -> None:
        self._context = context
        self._served: list[Served] = []
        self.server = IndexServer(root, static=static, on_request=self._served.append)

    @property
    def url(self) -> str:
        """Return the URL of the set's simple index."""
        return self.server.url + self._context.staged.simple

    def require(self, filenames: Sequence[str]) -> None:
        """Verify that clients downloaded these wheels of the set completely.

        Raises:
            InstallationError: a wheel was not downloaded, so the installed wheel has
                another origin.
        """
        sizes = {wheel.filename: wheel.size for wheel in self._context.wheel_set.wheels}
        for filename in filenames:
            key = self._context.staged.file(filename)
            if (
                sum(served.sent for served in [*self._served] if served.path == key)
                < sizes[filename]
            ):
                raise InstallationError(
                    "install-elsewhere",
                    f"{filename} did not come from the staged index.",
                )


@contextlib.contextmanager
def _open_index(
    context: GateContext, *, static: bool = False
) -> Iterator[_StagedIndex]:
    """Serve the staged set on this machine.

    Files of a remote bucket are downloaded first, once in a run of gates.
    """
    bucket = context.bucket
    staged = context.staged
    root = bucket.root if isinstance(bucket, DirBucket) else context.shared / "bucket"
    if not isinstance(bucket, DirBucket):
        names = [wheel.filename for wheel in context.wheel_set.wheels]
        names += map(metadata_name, names.copy())
        for key in (*bucket.list(staged.simple), *map(staged.file, names)):
            path = root / key
            if not path.exists():
                fetch_to(bucket, key, path)
    index = _StagedIndex(root, context, static=static)
    with index.server:
        yield index


class _InstallationTests:
    """The installation tests of one run; setting `stopped` ends them.

    Args:
        html: URL of the set's index on a server without JSON pages.
        rocm: URL of an index with stand-ins for the wheels of the set's ROCm.
        uv: program that spares the newest pip work that takes it 4 times as long: uv
            installs the dependencies, and pip installs the set for the first Python
            only, without HTML pages. None leaves all work to pip.
    """

    def __init__(
        self,
        context: GateContext,
        pythons: Mapping[str, Path],
        html: str,
        rocm: str,
        uv: Uv | None,
    ) -> None:
        self._context = context
        self._pythons = pythons
        self._html = html
        self._uv = uv
        self._rocm = rocm
        key = context.staged.file(PYLOCK)
        self._lock = (
            None
            if context.bucket.head(key) is None
            else context.bucket.get(key).decode()
        )
        self.stopped = threading.Event()

    def install(
        self,
        installer: Installer,
        version: str,
        shared: _StagedIndex | None,
        first: bool,
    ) -> tuple[Check, ...]:
        """Test an installer for one Python of the set.

        All install the same files, so the first checks the loader. Only the first Python
        installs ROCm too, uv for the last GPU and others for the first.
        """
        python = self._pythons.get(version)
        spared = self._uv is not None and installer.name == "pip"
        versions = self._context.wheel_set.python_versions
        earlier = takewhile(lambda other: other != version, versions)
        repeated = any(other in self._pythons for other in earlier)
        extras = [*extras_of(self._context.wheel_set.wheels)]
        extra = ""
        if extras and not repeated:
            extra = extras[-1 if installer.name == "uv" else 0]
        with self._place(shared) as (index, folder):
            test = InstallationTest(
                self._source(
                    index, version, html="" if spared else self._html, extra=extra
                ),
                self._context.runner,
                installer,
                version,
                folder,
                dependencies=self._uv,
                check_loader=first,
                is_wanted=self._is_wanted,
            )
            if python and spared and repeated:
                return tuple(test.resolution_checks(python))
            return tuple(test.checks(python))

    def _source(
        self, index: _StagedIndex, version: str, *, html: str, extra: str
    ) -> InstallationSource:
        wheel_set = self._context.wheel_set
        wheels = [wheel.filename for wheel in wheels_for(wheel_set, version)]
        return InstallationSource(
            index=index.url,
            wheel_set=wheel_set,
            lock=self._lock,
            verify_origin=lambda: index.require(wheels),
            html_index=html,
            compiled=site_for(self._context, version),
            extra=extra,
            rocm_index=self._rocm,
        )

    def _is_wanted(self) -> bool:
        return not self.stopped.is_set()

    def pair(
        self, installer: Installer, shared: _StagedIndex | None
    ) -> tuple[Check, ...]:
        """Test an installer with an incompatible pair."""
        wheel_set = self._context.wheel_set
        runner = self._context.runner
        versions = supported(installer, wheel_set.python_versions)
        version = next(
            (version for version in versions if version in self._pythons), ""
        )
        if not version:
            return (
                Check(
                    name=f"wrong pair with {installer.name}",
                    skipped="no Python of the set on this machine",
                ),
            )
        with self._place(shared) as (index, folder):
            return (
                check_pair(
                    wheel_set,
                    index.url,
                    runner,
                    installer,
                    version,
                    self._pythons[version],
                    folder,
                ),
            )

    @contextlib.contextmanager
    def _place(
        self, shared: _StagedIndex | None
    ) -> Iterator[tuple[_StagedIndex, Path]]:
        """Provide an index and an empty directory."""
        opened = (
            contextlib.nullcontext(shared)
            if shared is not None
            else _open_index(self._context)
        )
        with (
            opened as index,
            tempfile.TemporaryDirectory(dir=self._context.work) as folder,
        ):
            yield index, Path(folder)
