"""Commits and downloads of source trees."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.version import InvalidVersion, Version

from ci_build.wheelset.source.pins import COMMIT, pins_for
from core.digests import sha256_of
from core.errors import InputError, ProcessError, RequestError
from core.model import BuildRequest, Progress
from core.process import Runner
from core.source_request import Checkout, SourceInputs
from core.store import lock_shared

HEAD = "HEAD"
"""The commit of `--xla=head` in a dry run; a build resolves it."""
_GIT = ("git", "-c", "advice.detachedHead=false", "-c", "core.hooksPath=/dev/null")
_ZIP_EPOCH = 315532800
"""1980-01-01, the oldest time of a member of a zip file."""
_LEFT_BY_BUILDS = re.compile(
    r"bazel-.*|\.jax_configure\.bazelrc|MODULE\.bazel\.lock|__pycache__|\.git"
)
_USER_OPTIONS = (".bazelrc.user", "*/.bazelrc.user")
"""Bazel options of the user, which .bazelrc imports; the repositories' .gitignore lists them."""
_VERSION = re.compile(r'^_version = "([^"]+)"$', re.MULTILINE)
_XLA_PIN = re.compile(r'^XLA_COMMIT = "([0-9a-f]{40})"$', re.MULTILINE)


def resolve_inputs(
    request: BuildRequest,
    runner: Runner,
    *,
    own_commit: str,
    fetch: Callable[[Checkout], Path] | None,
) -> SourceInputs:
    """Return the commits of every source tree, of jax and XLA, and of this repository.

    A folder with changes is accepted. Its commit is marked `-dirty.<digest of the
    changes>`, so that its results are never mistaken for results of the commit.

    Args:
        own_commit: commit of this repository.
        fetch: function that fetches a tree and returns its folder; None contacts no
            server, so that `--xla=head` stays HEAD and unrecorded commits stay empty.

    Raises:
        RequestError: a tree is not of the requested release, or pins no XLA.
    """
    assert request.source is not None
    pins = pins_for(request.jax_version)
    sources = []
    times = {}
    for checkout in request.source.sources:
        if checkout.folder:
            commit, times[checkout.name] = folder_commit(Path(checkout.folder), runner)
        elif checkout.commit == HEAD and fetch is not None:
            commit = remote_head(checkout.url, runner)
        else:
            commit = checkout.commit
        sources.append(replace(checkout, commit=commit))
    trees = {checkout.name: checkout for checkout in sources}
    jax = trees.get("jax")
    xla = trees.get("xla")
    if jax is not None and jax.folder:
        _check_release(Path(jax.folder), request.jax_version)
    # rocm-jax always compiles the jax that it pins.
    compiled = jax if "rocm-jax" not in trees else None
    folder = Path(compiled.folder) if compiled and compiled.folder else None
    recorded = compiled is None or (pins and pins.xla and pins.jax == compiled.commit)
    if folder is None and not recorded and compiled is not None and fetch is not None:
        folder = fetch(compiled)
        times["jax"] = folder_commit(folder, runner)[1]
    if xla is not None:
        xla_commit = xla.commit
    elif folder is not None:
        xla_commit = pinned_xla(folder)
    else:
        xla_commit = pins.xla if pins and recorded else ""
    jax_commit = pins.jax if pins else ""
    if compiled is not None:
        jax_commit = compiled.commit
    return SourceInputs(
        sources=tuple(sources),
        jax_commit=jax_commit,
        xla_commit=xla_commit,
        epoch=times.get("jax") or (pins.epoch if pins and recorded else _ZIP_EPOCH),
        own_commit=own_commit,
    )


def folder_commit(
    folder: Path, runner: Runner, *, digest: Callable[[], str] | None = None
) -> tuple[str, int]:
    """Return the commit of a folder, and its time in seconds since 1970.

    The commit is `<commit>-dirty.<digest>` if files differ from it, and `tree-<digest>`
    for a folder that is not the root of a git repository.

    Args:
        digest: function that computes the digest of a folder outside git; the default
            hashes all its files.
    """
    git = (*_GIT, "-C", str(folder))
    try:
        root = runner.run((*git, "rev-parse", "--show-toplevel"), check=False)
        is_root = (
            root.returncode == 0
            and Path(root.stdout.strip()).resolve() == folder.resolve()
        )
    except ProcessError:
        is_root = False  # git is not installed
    if not is_root:
        content = tree_digest(folder) if digest is None else digest()
        return f"tree-{content[:16]}", _ZIP_EPOCH
    commit = runner.run((*git, "rev-parse", "--verify", "HEAD^{commit}")).stdout.strip()
    seconds = int(
        runner.run((*git, "show", "--no-patch", "--format=%ct", "HEAD")).stdout
    )
    status = runner.run(
        (*git, "status", "--porcelain=v1", "-z", "--untracked-files=all")
    ).stdout
    listed = (
        "ls-files",
        "-z",
        "--others",
        "--ignored",
        "--exclude-standard",
        "--",
        *_USER_OPTIONS,
    )
    options = runner.run((*git, *listed)).stdout.split("\0")
    paths = sorted({*changed_paths(status), *filter(None, options)})
    changed = tuple(
        path for path in paths if not _LEFT_BY_BUILDS.fullmatch(path.partition("/")[0])
    )
    if not changed:
        return commit, seconds
    return f"{commit}-dirty.{_digest_of(folder, changed)[:16]}", seconds


def changed_paths(text: str) -> tuple[str, ...]:
    """Return the sorted paths in the output of `git status --porcelain -z`.

    A renamed file has two.
    """
    changed = set()
    fields = iter(text.split("\0"))
    for entry in fields:
        if not entry:
            continue
        changed.add(entry[3:])
        if "R" in entry[:2] or "C" in entry[:2]:
            changed.add(next(fields, ""))
    return tuple(sorted(changed - {""}))


def tree_digest(folder: Path) -> str:
    """Return the SHA-256 of all files' names and contents, without build leftovers."""
    return _digest_of(folder, sorted(_files(folder)))


def _files(folder: Path) -> Iterator[str]:
    for top, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not _LEFT_BY_BUILDS.fullmatch(name)]
        names += [name for name in folders if Path(top, name).is_symlink()]
        yield from (
            Path(top, name).relative_to(folder).as_posix()
            for name in names
            if not _LEFT_BY_BUILDS.fullmatch(name)
        )


def _digest_of(folder: Path, paths: Sequence[str]) -> str:
    total = hashlib.sha256()
    for name in paths:
        path = folder / name
        total.update(f"{name}\0".encode())
        if path.is_symlink():
            total.update(f"link {path.readlink()}\0".encode())
        elif path.is_file():
            total.update(bytes.fromhex(sha256_of(path)))
        elif (
            path.is_dir()
        ):  # git lists another repository in the tree, such as a submodule, as one path
            total.update(bytes.fromhex(tree_digest(path)))
        else:
            total.update(b"gone\0")
    return total.hexdigest()


def head_command(url: str) -> tuple[str, ...]:
    """Return the command that prints the newest commit of a repository's default branch."""
    return (*_GIT, "ls-remote", url, HEAD)


def remote_head(url: str, runner: Runner) -> str:
    """Return the newest commit of a repository's default branch.

    Raises:
        InputError: the repository has no HEAD.
    """
    listed = runner.run(head_command(url)).stdout
    match = re.match(r"([0-9a-f]{40})\tHEAD$", listed, re.MULTILINE)
    if match is None:
        raise InputError(
            f"The repository has no HEAD: {url}.", hint="Give a commit with --xla."
        )
    return match[1]


def release_of(folder: Path) -> str:
    """Return the release of a jax tree.

    Raises:
        RequestError: the folder is not a jax tree.
    """
    try:
        found = _VERSION.search(
            (folder / "jax" / "version.py").read_text(encoding="utf-8")
        )
    except OSError:
        found = None
    if found is None:
        raise RequestError(
            f"{folder} is not a jax tree: jax/version.py with _version is missing.",
            hint="Give the root of a checkout of jax-ml/jax or ROCm/jax.",
        )
    return found[1]


def is_xla(folder: Path) -> bool:
    """Return whether a folder is the root of an XLA tree."""
    return (folder / "xla").is_dir() and any(
        (folder / name).is_file() for name in ("WORKSPACE", "MODULE.bazel")
    )


def local_mirror(url: str) -> Path | None:
    """Return the folder that a URL or path of a repository names on this machine.

    None for a server or nothing.

    As in git, `host:path` is a server, but a colon after the first slash is part of a
    path.
    """
    if url.startswith("file://"):
        return Path(unquote(urlsplit(url).path))
    before = url.partition("/")[0]
    return Path(url) if url and "://" not in url and ":" not in before else None


def _check_release(folder: Path, jax_version: str) -> None:
    release = release_of(folder)
    try:
        same = Version(release).base_version == Version(jax_version).base_version
    except InvalidVersion:
        same = False
    if not same:
        raise RequestError(
            f"{folder} is jax {release}, but jax {jax_version} was requested.",
            hint=f"Give --jax-version={release}.",
        )


def pinned_xla(folder: Path) -> str:
    """Return the XLA commit that a jax tree pins.

    Raises:
        RequestError: the tree pins no XLA commit.
    """
    for name in ("revision.bzl", "workspace.bzl"):
        path = folder / "third_party" / "xla" / name
        if path.is_file() and (
            match := _XLA_PIN.search(path.read_text(encoding="utf-8"))
        ):
            return match[1]
    raise RequestError(
        f"{folder} does not pin an XLA: XLA_COMMIT is not in third_party/xla.",
        hint="Give --xla=<commit> or --xla-source-dir.",
    )


def fetch_commands(checkout: Checkout, folder: str) -> tuple[tuple[str, ...], ...]:
    """Return the commands that fetch one commit, without its history, into a folder."""
    return (
        (*_GIT, "init", "--quiet", folder),
        (
            *_GIT,
            "-C",
            folder,
            "fetch",
            "--quiet",
            "--no-tags",
            "--depth=1",
            checkout.url,
            checkout.commit,
        ),
        (
            *_GIT,
            "-C",
            folder,
            "checkout",
            "--quiet",
            "--force",
            "--detach",
            checkout.commit,
        ),
    )


def fetch_tree(
    checkout: Checkout, folder: Path, runner: Runner, progress: Progress
) -> None:
    """Fetch a source tree at its commit, unless the folder already has it.

    The tree is fetched under a temporary name and then renamed; a tree with changes is
    fetched again. The tree is locked as in use until this process ends, so that garbage
    collection skips it.

    Raises:
        InputError: the commit cannot be fetched.
    """
    if checkout.folder:
        return
    if COMMIT.fullmatch(checkout.commit) is None:
        raise InputError(
            f"{checkout.name}: {checkout.commit!r} is not a full commit.",
            hint="Give all 40 hexadecimal digits.",
        )
    from core.store import hold_lock  # Start-up time: a dry run fetches nothing.

    folder.parent.mkdir(parents=True, exist_ok=True)
    with hold_lock(folder.parent / f".{folder.name}.lock"):
        if folder.is_dir():
            if folder_commit(folder, runner)[0] == checkout.commit:
                os.utime(folder)
                lock_shared(folder)
                return
            shutil.rmtree(folder)
        progress.step(f"fetch {checkout.name} at {checkout.commit[:12]}")
        _fetch(checkout, folder, runner)
        lock_shared(folder)


def _fetch(checkout: Checkout, folder: Path, runner: Runner) -> None:
    with tempfile.TemporaryDirectory(
        prefix=f".{folder.name}-", dir=folder.parent
    ) as name:
        work = Path(name) / "tree"
        try:
            for argv in fetch_commands(checkout, str(work)):
                runner.run(argv, env={"GIT_TERMINAL_PROMPT": "0"})
        except ProcessError as error:
            raise InputError(
                f"Cannot fetch {checkout.name} at {checkout.commit} from"
                f" {checkout.url}. {error.message}",
                hint="Check the network, or give --source-mirror or a local folder.",
            ) from error
        at = folder_commit(work, runner)[0]
        if at != checkout.commit:
            raise InputError(
                f"{checkout.url} served commit {at} instead of {checkout.commit}.",
                hint="Report this to the owner of the repository.",
            )
        work.rename(folder)


def check_complete(inputs: SourceInputs) -> None:
    """Check that every commit and digest that the wheels record is known.

    Raises:
        InputError: a commit or digest is unknown.
    """
    if empty := sorted(
        name for name, value in inputs.stamps().items() if value in ("", HEAD)
    ):
        raise InputError(
            "Internal error: unknown commits or digests of sources:"
            f" {', '.join(empty)}.",
            hint="Report this; nothing was built.",
        )
