"""Source trees: which commit each one is, and bringing those that are fetched."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from packaging.version import InvalidVersion, Version

from ci_build.build.source import git_source
from ci_build.build.source.pins import COMMIT, pins_for
from core.digests import file_sha256
from core.errors import InputError, ProcessError, RequestError
from core.model import BuildRequest, Progress
from core.process import Runner
from core.source_request import Checkout, SourceRequest

_ZIP_BEGINS = 315532800
"""1980-01-01: no member of a wheel can be older."""
_LEFT_BY_BUILDS = re.compile(r"bazel-.*|\.jax_configure\.bazelrc|MODULE\.bazel\.lock|__pycache__|\.git")
_VERSION = re.compile(r'^_version = "([^"]+)"$', re.MULTILINE)
_XLA_PIN = re.compile(r'^XLA_COMMIT = "([0-9a-f]{40})"$', re.MULTILINE)


def identify(
    request: BuildRequest, runner: Runner, *, own: Path, own_digest: Callable[[], str], look_only: bool
) -> BuildRequest:
    """The same request with the commit of every source tree, of this repository, and of what they pin.

    A folder with changes is not refused: its commit is marked `-dirty.<digest of the changes>`, so that no result of
    it is taken for one of the commit, and everybody sees it.

    Args:
        own: this repository.
        own_digest: makes that of this program, for a repository that git does not know.
        look_only: ask no server anything; `--xla=head` stays HEAD.

    Raises:
        RequestError: a tree that is another release than the one that was asked for, or that does not tell its XLA.
    """
    assert request.source is not None
    source, pins = request.source, pins_for(request.jax_version)
    found, times = [], {}
    for checkout in source.sources:
        if checkout.folder:
            commit, times[checkout.name] = folder_commit(Path(checkout.folder), runner)
            found.append(replace(checkout, commit=commit))
        elif checkout.commit == git_source.HEAD and not look_only:
            found.append(replace(checkout, commit=remote_head(checkout.url, runner)))
        else:
            found.append(checkout)
    source = replace(source, sources=tuple(found))
    jax, xla = source.source("jax"), source.source("xla")
    if jax is not None and jax.folder:
        _check_release(Path(jax.folder), request.jax_version)
    pinned_by_folder = jax is not None and jax.folder and source.source("rocm-jax") is None
    if xla is not None:
        xla_commit = xla.commit
    elif pinned_by_folder and jax is not None:
        xla_commit = pinned_xla(Path(jax.folder))
    else:
        xla_commit = pins.xla if pins else ""
    of_folder = jax is not None and source.source("rocm-jax") is None
    jax_commit = jax.commit if jax is not None and of_folder else (pins.jax if pins else "")
    return replace(
        request,
        source=replace(
            source,
            jax_commit=jax_commit,
            xla_commit=xla_commit,
            epoch=times.get("jax", pins.epoch if pins else _ZIP_BEGINS),
            own_commit=folder_commit(own, runner, digest=own_digest)[0],
        ),
    )


def folder_commit(folder: Path, runner: Runner, *, digest: Callable[[], str] | None = None) -> tuple[str, int]:
    """What a folder is, and when that was made, in seconds since 1970.

    Args:
        digest: makes the digest of a folder that git does not know; a hash of all its files unless given.

    Returns:
        Its commit, `<commit>-dirty.<digest>` where files differ from it, `tree-<digest>` where it is not the root of
        a git repository.
    """
    try:
        root = runner.run(git_source.root_command(str(folder)), check=False)
        known = root.returncode == 0 and Path(root.stdout.strip()).resolve() == folder.resolve()
    except ProcessError:
        known = False  # without git a folder is what is in it
    if not known:
        made = tree_digest(folder) if digest is None else digest()
        return f"tree-{made[:16]}", _ZIP_BEGINS
    commit = runner.run(git_source.commit_command(str(folder))).stdout.strip()
    seconds = int(runner.run(git_source.time_command(str(folder))).stdout)
    changed = git_source.changed_paths(runner.run(git_source.changes_command(str(folder))).stdout)
    changed = tuple(path for path in changed if not _LEFT_BY_BUILDS.fullmatch(path.partition("/")[0]))
    if not changed:
        return commit, seconds
    return f"{commit}-dirty.{_digest_of(folder, changed)[:16]}", seconds


def tree_digest(folder: Path) -> str:
    """SHA-256 over the names and contents of all files, but those that builds leave behind."""
    return _digest_of(folder, sorted(_files(folder)))


def _files(folder: Path) -> Iterator[str]:
    for top, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not _LEFT_BY_BUILDS.fullmatch(name)]
        yield from (
            Path(top, name).relative_to(folder).as_posix() for name in names if not _LEFT_BY_BUILDS.fullmatch(name)
        )


def _digest_of(folder: Path, paths: Sequence[str]) -> str:
    total = hashlib.sha256()
    for name in paths:
        path = folder / name
        total.update(f"{name}\0".encode())
        if path.is_symlink():
            total.update(f"link {path.readlink()}\0".encode())
        elif path.is_file():
            total.update(bytes.fromhex(file_sha256(path)))
        else:
            total.update(b"gone\0")
    return total.hexdigest()


def remote_head(url: str, runner: Runner) -> str:
    """The newest commit of a repository's default branch.

    Raises:
        InputError: the repository does not tell.
    """
    commit = git_source.head_of(runner.run(git_source.remote_head_command(url)).stdout)
    if commit is None:
        raise InputError(f"{url} does not tell its HEAD.", hint="Give a commit.")
    return commit


def release_of(folder: Path) -> str:
    """The release that a jax tree is on the way to.

    Raises:
        RequestError: it is no jax tree.
    """
    try:
        found = _VERSION.search((folder / "jax" / "version.py").read_text(encoding="utf-8"))
    except OSError:
        found = None
    if found is None:
        raise RequestError(
            f"{folder} is no jax tree: jax/version.py with its _version is missing.",
            hint="Give the root of a checkout of jax-ml/jax or ROCm/jax.",
        )
    return found[1]


def _check_release(folder: Path, jax_version: str) -> None:
    release = release_of(folder)
    try:
        same = Version(release).base_version == Version(jax_version).base_version
    except InvalidVersion:
        same = False
    if not same:
        raise RequestError(
            f"{folder} is jax {release}, and jax {jax_version} was asked for.", hint=f"Give --jax-version={release}."
        )


def pinned_xla(folder: Path) -> str:
    """The commit of XLA that a jax tree pins.

    Raises:
        RequestError: it does not tell.
    """
    for name in ("revision.bzl", "workspace.bzl"):
        path = folder / "third_party" / "xla" / name
        if path.is_file() and (found := _XLA_PIN.search(path.read_text(encoding="utf-8"))):
            return found[1]
    raise RequestError(
        f"{folder} does not tell which XLA it is built with: XLA_COMMIT is not in third_party/xla.",
        hint="Give --xla=<commit> or --xla-source-dir.",
    )


def bring(checkout: Checkout, folder: Path, runner: Runner, progress: Progress) -> None:
    """See to it that a source tree is there, at its commit, as it was committed.

    It is made under another name and renamed when it is whole; a tree that was changed since is made anew. It is in use
    from now on until this process ends, so that nobody takes it for garbage.

    Raises:
        InputError: it cannot be had, or is another commit.
    """
    if checkout.folder:
        return
    if COMMIT.fullmatch(checkout.commit) is None:
        raise InputError(f"{checkout.name}: {checkout.commit!r} is no commit.", hint="Give all 40 digits.")
    from filelock import FileLock

    from core.treefiles import hold

    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / f".{folder.name}.lock"):
        if folder.is_dir():
            if folder_commit(folder, runner)[0] == checkout.commit:
                os.utime(folder)
                hold(folder)
                return
            shutil.rmtree(folder)
        progress.step(f"fetch {checkout.name} at {checkout.commit[:12]}")
        _fetch(checkout, folder, runner)
        hold(folder)


def _fetch(checkout: Checkout, folder: Path, runner: Runner) -> None:
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as name:
        work = Path(name) / "tree"
        try:
            for argv in git_source.fetch_commands(checkout, str(work)):
                runner.run(argv, env={"GIT_TERMINAL_PROMPT": "0"})
        except ProcessError as error:
            raise InputError(
                f"{checkout.name} at {checkout.commit} cannot be fetched from {checkout.url}. {error.message}",
                hint="Check the network, or give --source-mirror or a folder of your own.",
            ) from error
        at = folder_commit(work, runner)[0]
        if at != checkout.commit:
            raise InputError(f"{checkout.url} gave {at} for {checkout.commit}.", hint="Report this to its owner.")
        work.rename(folder)


def refuse_unknown(source: SourceRequest) -> None:
    """See to it that everything that the wheels are made of is known: none of their stamps may be empty.

    Raises:
        InputError: all that is not known.
    """
    if empty := sorted(name for name, value in source.stamps().items() if value in ("", git_source.HEAD)):
        raise InputError(
            f"What the wheels would be made of is not known: {', '.join(empty)}.",
            hint="Report this; nothing was built.",
        )
