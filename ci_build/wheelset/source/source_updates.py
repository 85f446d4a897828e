"""Updates of `pins.toml` from the tags of jax and rocm-jax."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import tomli_w
from packaging.version import InvalidVersion, Version

from ci_build.wheelset.source.pins import (
    BuildRepository,
    PinTable,
    SourcePins,
    first_release,
    interface_for,
)
from core.atomic import write_whole
from core.errors import InputError
from core.frozen import frozen
from core.model import Progress
from core.process import Runner

JAX_TAG, ROCM_JAX_TAG = "jax-v", "rocm-jax-v"
"""Prefixes of the release tags of jax-ml/jax and ROCm/rocm-jax."""
AMD_BRANCH = "/rocm-jaxlib-v"
"""Part of the names of ROCm/jax's release branches; those of a clone are in refs/remotes."""
_HEADER = """\
# Commits of each JAX release, written by `ci_build sources --update`.
#
# tags        release -> commit of the tag jax-v<release> of jax-ml/jax
# unsupported release -> reason why its ROCm wheels cannot be built from source
# pins        jax, xla: compiled sources; third_party/xla of the jax commit pins the
#             XLA commit. rocm_jax: source of the rocm-jax interface, with the tag
#             rocm-jax-v<release> of ROCm/rocm-jax (0.9.0: branch rocm-jaxlib-v0.9.0);
#             its third_party pins the jax and XLA commits. epoch: commit time of the
#             repository that builds the wheels, used as SOURCE_DATE_EPOCH
#             (both are read from the fetched jax if they are not recorded)
# amd         release -> commit of ROCm/jax that AMD's wheels name in version.py
#             (_git_hash), as jaxlib's name the commit of jax's tag; of a release that
#             was added before its wheels, the head of the branch rocm-jaxlib-v<release>

"""
_GIT = ("git", "-c", "core.hooksPath=/dev/null")
_XLA = re.compile(r'^XLA_COMMIT = "([0-9a-f]{40})"$', re.MULTILINE)
_JAX = re.compile(r'^(?:JAX_)?COMMIT = "([0-9a-f]{40})"$', re.MULTILINE)
_XLA_FILES = ("third_party/xla/revision.bzl", "third_party/xla/workspace.bzl")
_Row = TypeVar("_Row")
_ROCM_JAX_FILES = "jax_rocm_plugin/third_party/{}/workspace.bzl"


@frozen
class TaggedRepository:
    """A git repository with tags; bare repositories are accepted.

    Attributes:
        prefix: prefix of its release tags.
    """

    folder: Path
    prefix: str
    runner: Runner

    def git(self, *words: str) -> str:
        """Return the output of a git command, or an empty string if it fails."""
        done = self.runner.run((*_GIT, "-C", str(self.folder), *words), check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    def tags(self) -> dict[str, str]:
        """Return the commit of each release tag, for releases with an interface, oldest first.

        Raises:
            InputError: the folder is not a git repository, or has no release tags.
        """
        lines = self.git(
            "for-each-ref",
            "--format=%(refname:short) %(objectname) %(*objectname)",
            "refs/tags",
        )
        found = {}
        for words in (line.split() for line in lines.splitlines()):
            if words[0].startswith(self.prefix) and _is_release(
                words[0].removeprefix(self.prefix)
            ):
                found[words[0].removeprefix(self.prefix)] = words[-1]
        if not found:
            raise InputError(
                f"{self.folder} has no release tags {self.prefix}*.",
                hint="Give a checkout with tags, such as after `git fetch --tags`.",
            )
        return dict(sorted(found.items(), key=lambda row: Version(row[0])))

    def pinned(self, commit: str, pattern: re.Pattern[str], *names: str) -> str:
        """Return the commit that a file of a commit names.

        Raises:
            InputError: no file names a commit.
        """
        for name in names:
            if match := pattern.search(self.git("show", f"{commit}:{name}")):
                return match[1]
        raise InputError(
            f"Commit {commit} of {self.folder} pins no commit in {' or '.join(names)}.",
            hint="Give a complete checkout.",
        )

    def epoch(self, commit: str) -> int:
        """Return the time of a commit in seconds since 1970."""
        return int(self.git("show", "--no-patch", "--format=%ct", commit))


def _is_release(text: str) -> bool:
    try:
        version = Version(text)
    except InvalidVersion:
        return False
    return (
        not version.is_prerelease
        and str(version) == text
        and version >= Version(first_release())
    )


def updated(
    table: PinTable, jax: TaggedRepository, rocm_jax: TaggedRepository | None
) -> PinTable:
    """Return the table with all releases that the checkouts have tags of.

    Without rocm-jax, the releases that it builds are left as they are.

    Raises:
        InputError: a tag of jax was moved or removed, or the sources of a release are
            incomplete.
    """
    found = jax.tags()
    builders = rocm_jax.tags() if rocm_jax else {}
    if changed := moved(table.tags, found):
        raise InputError(
            f"The tags in {jax.folder} differ from pins.toml: {'; '.join(changed)}.",
            hint=(
                "Fetch the tags; if upstream moved one, remove it from pins.toml first."
            ),
        )
    pins = dict(table.pins)
    unsupported = dict(table.unsupported)
    for release, commit in found.items():
        if release in pins and pins[release].xla:
            continue
        if interface_for(release).kind is BuildRepository.JAX:
            xla = jax.pinned(commit, _XLA, *_XLA_FILES)
            pins[release] = SourcePins(
                jax=commit, xla=xla, rocm_jax="", epoch=jax.epoch(commit)
            )
        elif rocm_jax is None:
            continue
        elif builder := builders.get(release):
            pins[release] = SourcePins(
                jax=rocm_jax.pinned(builder, _JAX, _ROCM_JAX_FILES.format("jax")),
                xla=rocm_jax.pinned(builder, _XLA, _ROCM_JAX_FILES.format("xla")),
                rocm_jax=builder,
                epoch=rocm_jax.epoch(builder),
            )
        else:
            unsupported[release] = (
                "ROCm/rocm-jax, which built the ROCm wheels then, has no tag"
                f" {ROCM_JAX_TAG}{release}"
            )
    ready = {
        release: text for release, text in unsupported.items() if release not in pins
    }
    return replace(
        table, tags=_sorted({**table.tags, **found}), pins=pins, unsupported=ready
    )


def moved(recorded: Mapping[str, str], found: Mapping[str, str]) -> tuple[str, ...]:
    """Return a line for each recorded tag that is missing or names another commit.

    Tags newer than all that were found are missing in an older checkout.
    """
    newest = max(map(Version, found))
    return tuple(
        f"{JAX_TAG}{release} is {found.get(release, 'missing')}, and pins.toml has"
        f" {commit}"
        for release, commit in recorded.items()
        if found.get(release) != commit
        and (release in found or Version(release) < newest)
    )


def open_repository(
    url: str, prefix: str, folder: Path, runner: Runner, progress: Progress
) -> TaggedRepository:
    """Return a checkout on this machine, or fetch commits of a server into a new repository.

    Args:
        url: path of a checkout, or URL.
        prefix: prefix of the tags to fetch; empty fetches the newest commit as HEAD.

    Raises:
        ProcessError: the repository cannot be reached.
    """
    if Path(url).is_dir():
        return TaggedRepository(folder=Path(url), prefix=prefix, runner=runner)
    progress.step(f"fetch {prefix or 'HEAD'} of {url}")
    refs = ["HEAD:refs/heads/main"]
    if prefix:
        start = f"refs/tags/{prefix}"
        argv = (*_GIT, "ls-remote", "--tags", "--refs", url, f"{start}*")
        listed = runner.run(argv).stdout
        names = [line.partition("\t")[2] for line in listed.splitlines()]
        names = [name for name in names if _is_release(name.removeprefix(start))]
        refs = [f"{name}:{name}" for name in names]
    head = ("-c", "init.defaultBranch=main")
    runner.run((*_GIT, *head, "init", "--quiet", "--bare", str(folder)))
    if refs:
        options = ("-C", str(folder), "fetch", "--quiet", "--no-tags", "--depth=1")
        runner.run((*_GIT, *options, url, *refs))
    return TaggedRepository(folder=folder, prefix=prefix, runner=runner)


def with_amd_branches(table: PinTable, url: str, runner: Runner) -> PinTable:
    """Return the table with the heads of AMD's release branches that it lacks.

    Raises:
        ProcessError: the repository cannot be reached.
    """
    listed = runner.run((*_GIT, "ls-remote", url, f"*{AMD_BRANCH}*")).stdout
    amd = dict(table.amd)
    for line in listed.splitlines():
        commit, _, name = line.partition("\t")
        release = name.rpartition(AMD_BRANCH)[2]
        # Older releases have the commits of ROCm/jax that rocm-jax pins.
        if _is_release(release) and interface_for(release).kind is BuildRepository.JAX:
            amd.setdefault(release, commit)
    return replace(table, amd=amd)


def write(path: Path, table: PinTable) -> None:
    """Write `pins.toml`."""
    body = {
        "tags": dict(table.tags),
        "unsupported": _sorted(table.unsupported),
        "pins": {
            release: {
                **({"rocm_jax": pins.rocm_jax} if pins.rocm_jax else {}),
                "jax": pins.jax,
                **({"xla": pins.xla, "epoch": pins.epoch} if pins.xla else {}),
            }
            for release, pins in _sorted(table.pins).items()
        },
        **({"amd": _sorted(table.amd)} if table.amd else {}),
    }
    write_whole(path, (_HEADER + tomli_w.dumps(body)).encode())


def _sorted(rows: Mapping[str, _Row]) -> dict[str, _Row]:
    return dict(sorted(rows.items(), key=lambda row: Version(row[0])))
