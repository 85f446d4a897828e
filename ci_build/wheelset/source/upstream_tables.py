"""The tables that repeat facts of other projects: `pins.toml` and `families.toml`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from ci_build.rocm import therock_families
from ci_build.rocm.therock_families import Runners, read_therock
from ci_build.wheelset.source import pins, source_updates
from ci_build.wheelset.source.pins import PinTable
from ci_build.wheelset.source.source_checkouts import local_mirror
from ci_build.wheelset.source.source_updates import (
    JAX_TAG,
    ROCM_JAX_TAG,
    TaggedRepository,
)
from core.atomic import write_whole
from core.errors import InputError
from core.frozen import frozen
from core.model import Progress
from core.process import Runner
from core.targets import load_table
from promotion.policy.families import FAMILIES_FILE, load_families

_REPOSITORIES = ("jax", "rocm-jax", "amd-jax", "therock")


@frozen
class UpstreamTables:
    """Content of this project's tables after an update.

    Attributes:
        runners: new runners in `families.toml`.
        differences: lines on what only a person can add.
    """

    table: PinTable
    runners: Mapping[str, Runners]
    differences: tuple[str, ...]

    def write(self, before: PinTable, path: Path) -> None:
        """Write the tables that changed."""
        if self.table != before:
            source_updates.write(path, self.table)
        if self.runners:
            text = FAMILIES_FILE.read_text(encoding="utf-8")
            text = therock_families.with_runners(text, self.runners, load_table())
            write_whole(FAMILIES_FILE, text.encode())

    def lines(self, before: PinTable) -> Iterator[str]:
        """Yield the differences from the tables before."""
        for release, row in self.table.pins.items():
            if before.pins.get(release) != row:
                yield f"{release}: jax {row.jax}, XLA {row.xla}"
        for release, reason in self.table.unsupported.items():
            if release not in before.unsupported:
                yield f"{release}: {reason}"
        for release, commit in self.table.amd.items():
            if before.amd.get(release) != commit:
                yield f"{release}: ROCm/jax {commit}"
        for family, runners in self.runners.items():
            labels = [*runners.single, *runners.multi]
            yield f"{family}: {', '.join(labels) or 'no runner'}"
        yield from self.differences


def read_upstream(
    before: PinTable, mirror: str, runner: Runner, progress: Progress
) -> UpstreamTables:
    """Return the tables, updated from the servers.

    Args:
        mirror: URL or folder that replaces the server. Repositories that a folder lacks
            are skipped.

    Raises:
        ProcessError: a repository cannot be reached.
        InputError: a tag was moved, a file has another form, or a folder has no checkout.
    """
    urls = {name: pins.repository_url(name, mirror) for name in _REPOSITORIES}
    missing = [name for name, url in urls.items() if not _reachable(url)]
    if len(missing) == len(urls):
        raise InputError(
            f"No checkout in {mirror}.",
            hint=f"Give a folder with one of {', '.join(urls.values())}.",
        )
    for name in missing:
        progress.step(f"skipped: {urls.pop(name)} is missing")
    table = before
    therock = None
    with tempfile.TemporaryDirectory(prefix="ci_build-sources-") as place:

        def repository(name: str, prefix: str) -> TaggedRepository | None:
            if name not in urls:
                return None
            folder = Path(place, name)
            return source_updates.open_repository(
                urls[name], prefix, folder, runner, progress
            )

        if jax := repository("jax", JAX_TAG):
            rocm_jax = repository("rocm-jax", ROCM_JAX_TAG)
            table = source_updates.updated(table, jax, rocm_jax)
        if "amd-jax" in urls:
            table = source_updates.with_amd_branches(table, urls["amd-jax"], runner)
        if source := repository("therock", ""):
            commit = source.git("rev-parse", "HEAD")
            therock = read_therock(
                commit, lambda path: source.git("show", f"{commit}:{path}")
            )
    runners = {}
    differences: tuple[str, ...] = ()
    if therock:
        runners = therock_families.changed(therock, load_families(), load_table())
        differences = therock_families.differences(therock, load_table())
    return UpstreamTables(table=table, runners=runners, differences=differences)


def _reachable(url: str) -> bool:
    """Return whether a path exists; a server is not asked."""
    folder = local_mirror(url)
    return folder is None or folder.is_dir()
