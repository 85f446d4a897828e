"""AITER's sources: its repository at the pinned commit, the package index's sdist, or a checkout.

Every used file must match the lock of its origin, `aiter-<origin>.lock`; files of submodules are
pinned by the commit alone. AITER's setup.py is never run.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from fnmatch import fnmatchcase
from pathlib import Path

from core.digests import sha256_of
from core.errors import InputError, KernelError, ProcessError, RequestError
from core.frozen import frozen
from core.model import InputFile
from core.pip import pip_argv, progress_reader, run_pip
from core.process import Runner
from core.store import hold_lock, remove
from core.unpack.decompress import chunks_of, format_of
from core.unpack.extract import Limits, extract
from kernels.build_context import BuildContext
from kernels.modules import KernelModule, SourceArchive, UpstreamSource

COMMIT = "commit"
SDIST = "sdist"
_WITHOUT_SETUP = Path(__file__).with_name("without_setup")
_LIMITS = Limits(size=4_000_000_000, entries=200_000)
_SHOWN = 8
_GIT = ("git", "-c", "core.hooksPath=/dev/null", "-c", "core.autocrlf=false")


@frozen
class LockedFile:
    """A locked file.

    Attributes:
        kernels: kernel symbol of a code object -> bytes of its arguments.
    """

    sha256: str
    size: int
    kernels: Mapping[str, int] = field(default_factory=dict)


@frozen
class SourceTree:
    """An upstream source on disk.

    Attributes:
        folder: base of the paths in `modules.toml`.
        files: path -> sha256 of the used files, verified.
        origin: record of the source; None for a checkout.
        name: display name.
        kind: COMMIT or SDIST, whose lock the files match.
        lock: content of the lock.
    """

    folder: Path
    files: Mapping[str, str]
    origin: InputFile | None
    name: str
    kind: str = SDIST
    lock: Mapping[str, LockedFile] = field(default_factory=dict)


def lock_path(kind: str) -> Path:
    """Return the lock of the pinned commit or of the sdist."""
    return Path(__file__).with_name(f"aiter-{kind}.lock")


def read_lock(kind: str) -> dict[str, LockedFile]:
    """Return the content of a lock: path below the source's folder -> file."""
    lock = {}
    for line in lock_path(kind).read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        sha256, size, name, *kernels = line.split()
        sizes = {}
        for kernel in kernels:
            symbol, _, count = kernel.partition("=")
            sizes[symbol] = int(count)
        lock[name] = LockedFile(sha256=sha256, size=int(size), kernels=sizes)
    return lock


def used_by(modules: Iterable[KernelModule], files: Iterable[str]) -> tuple[str, ...]:
    """Return the sorted files of a source that the modules use."""
    patterns: list[str] = []
    for module in modules:
        patterns += [f"{folder}/*" for folder in module.source_folders]
        for objects in module.objects:
            patterns += objects.tuned
            for target in objects.targets:
                patterns += objects.patterns(target)
    return tuple(matching(files, patterns))


def matching(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Return the sorted names that match a pattern."""
    wanted = tuple(patterns)
    return sorted(
        name for name in names if any(fnmatchcase(name, pattern) for pattern in wanted)
    )


def obtain(
    wish: str,
    source: UpstreamSource,
    modules: Iterable[KernelModule],
    context: BuildContext,
) -> SourceTree:
    """Find or download a source and verify the files that the modules use.

    Args:
        wish: `sdist` or a checkout; empty selects the pinned commit.

    Raises:
        RequestError: `wish` is neither.
        InputError: the source is not available, or the sdist has another digest.
        KernelError: a used file is missing or differs from the lock.
    """
    used = tuple(modules)
    place = find(wish, source, used, context)
    kind = SDIST if (place / "PKG-INFO").is_file() else COMMIT
    folder = place / "aiter_meta" if kind == SDIST else place
    lock = read_lock(kind)
    name = source.describe(kind) if wish in ("", SDIST) else str(place)
    digests = {path: file.sha256 for path, file in lock.items()}
    files = check(folder, used_by(used, lock), name, digests)
    if kind == COMMIT:
        files |= _unlocked(folder, used, source)
    return SourceTree(
        folder=folder,
        files=files,
        origin=_origin(source, kind, files) if wish in ("", SDIST) else None,
        name=name,
        kind=kind,
        lock=lock,
    )


def find(
    wish: str,
    source: UpstreamSource,
    modules: Iterable[KernelModule],
    context: BuildContext,
) -> Path:
    """Return the top folder of a source without verifying its files; see `obtain`."""
    check_wish(wish)
    _folder(context).mkdir(parents=True, exist_ok=True)
    if wish == SDIST:
        return _from_index(source.sdist, context)
    if wish:
        return Path(wish).resolve()
    return _from_git(source, modules, context)


def _folder(context: BuildContext) -> Path:
    return context.cache / "sources"


def check_wish(wish: str) -> None:
    """Check the value of --aiter-source.

    Raises:
        RequestError: it is neither `sdist` nor a folder.
    """
    if wish not in ("", SDIST) and not Path(wish).is_dir():
        raise RequestError(
            f"--aiter-source is neither sdist nor a folder: {wish!r}.",
            hint="Omit it to use the pinned commit of AITER's repository.",
        )


def check(
    root: Path,
    wanted: Iterable[str],
    name: str,
    lock: Mapping[str, str],
) -> dict[str, str]:
    """Compare files with a lock and return their digests.

    Raises:
        KernelError: files are missing or changed; the message lists them.
    """
    faults: dict[str, list[str]] = {"lacks": [], "has changed": []}
    good = {}
    for path in wanted:
        file = located(root, path)
        if not file.is_file():
            faults["lacks"].append(path)
        elif (digest := sha256_of(file)) != lock[path]:
            faults["has changed"].append(path)
        else:
            good[path] = digest
    problems = []
    for fault, paths in faults.items():
        more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
        if paths:
            problems.append(f"{fault} {', '.join(paths[:_SHOWN])}{more}")
    if problems:
        raise KernelError(
            f"{name} {'; it '.join(problems)}.",
            hint=(
                "Use the pinned commit, or review the differences and run"
                " `ci_build kernels update` with this source."
            ),
        )
    return good


def located(root: Path, name: str) -> Path:
    """Return the path of a file; AITER's Python package lies beside the sdist's other files."""
    path = root / name
    beside = name.startswith("aiter/") and not path.exists()
    return root.parent / name if beside else path


def digest_of(files: Mapping[str, str], below: Iterable[str]) -> str:
    """Return one digest of the files below some folders, or of some files."""
    paths = tuple(below)
    total = hashlib.sha256()
    for name, sha256 in sorted(files.items()):
        if any(name == folder or name.startswith(f"{folder}/") for folder in paths):
            total.update(f"{name}\0{sha256}\n".encode())
    return total.hexdigest()


def _origin(
    source: UpstreamSource,
    kind: str,
    files: Mapping[str, str],
) -> InputFile:
    """Return the record of a pinned source; that of a commit has the digest of the used files."""
    if kind == SDIST:
        sdist = source.sdist
        return InputFile(
            filename=sdist.filename, size=sdist.size, sha256=sdist.sha256, url=""
        )
    url = f"{source.url}/tree/{source.commit}"
    total = digest_of(files, files)
    return InputFile(filename=source.describe(COMMIT), size=0, sha256=total, url=url)


def _unlocked(
    folder: Path,
    modules: Iterable[KernelModule],
    source: UpstreamSource,
) -> dict[str, str]:
    """Return the digests of the submodules' files that the modules use.

    Raises:
        KernelError: the source lacks a submodule.
    """
    digests = {}
    for path in source.submodules_of(modules):
        names = []
        for file in (folder / path).rglob("*"):
            if file.is_file() and not file.is_symlink():
                names.append(str(file.relative_to(folder)))
        if not names:
            raise KernelError(
                f"{folder} lacks the submodule {path}.",
                hint="Run `git submodule update --init` there.",
            )
        for name in used_by(modules, names):
            digests[name] = sha256_of(folder / name)
    return digests


def _from_git(
    source: UpstreamSource,
    modules: Iterable[KernelModule],
    context: BuildContext,
) -> Path:
    """Return a checkout of the pinned commit, with the submodules that the modules need."""
    tree = _folder(context) / source.commit
    step = context.progress.step
    with hold_lock(tree.with_suffix(".lock")):
        if not tree.is_dir():
            step(f"fetch {source.describe(COMMIT)} from {source.url}")
            _check_out(source.url, source.commit, tree, context)
        for path in source.submodules_of(modules):
            if any((tree / path).iterdir()):
                continue
            step(f"fetch {path} from {source.submodules[path]}")
            commit = git_commit(tree, f"{source.commit}:{path}", context.runner)
            _check_out(source.submodules[path], commit, tree / path, context)
    return tree


def git_commit(
    tree: Path,
    name: str,
    runner: Runner,
) -> str:
    """Return the full id of a commit, such as HEAD, in a checkout."""
    return runner.run((*_GIT, "-C", str(tree), "rev-parse", name)).stdout.strip()


def _check_out(
    url: str,
    commit: str,
    tree: Path,
    context: BuildContext,
) -> None:
    """Fetch one commit, which git verifies by its id, into a missing or empty folder."""
    runner = context.runner
    with _fresh(_folder(context)) as fresh:
        git = (*_GIT, "-C", str(fresh))
        try:
            runner.run((*_GIT, "init", "--quiet", str(fresh)))
            fetch = ("fetch", "--quiet", "--depth=1", url, commit)
            runner.run((*git, *fetch), env={"GIT_TERMINAL_PROMPT": "0"})
            runner.run((*git, "checkout", "--quiet", "--detach", commit))
        except ProcessError as error:
            raise InputError(
                f"AITER's commit {commit} cannot be fetched from {url}:"
                f" {error.message.splitlines()[-1].strip()}.",
                hint=(
                    "Use --aiter-source=sdist for the release of the package index, or"
                    " --aiter-source=DIR for a checkout."
                ),
            ) from error
        fresh.rename(tree)


def _from_index(
    sdist: SourceArchive,
    context: BuildContext,
) -> Path:
    """Return the tree of the pinned sdist, downloaded with pip if necessary."""
    tree = _folder(context) / sdist.sha256
    with hold_lock(tree.with_suffix(".lock")):
        if not tree.is_dir():
            with _fresh(_folder(context)) as fresh:
                path = _download(sdist, fresh, context)
                context.progress.step(f"unpack {path.name}")
                (fresh / "tree").mkdir()
                with path.open("rb", buffering=0) as stream:
                    form = format_of(path.name)
                    extract(chunks_of(stream), form, fresh / "tree", limits=_LIMITS)
                path.unlink()
                fresh.rename(tree)
    (top,) = (tree / "tree").iterdir()
    return top


def _download(
    sdist: SourceArchive,
    folder: Path,
    context: BuildContext,
) -> Path:
    """Download the sdist with pip, and verify its digest."""
    wanted = f"{sdist.project}=={sdist.version}"
    progress = context.progress
    progress.step(f"fetch the source archive of {wanted} from the package index")
    options = (
        "--no-deps",
        "--no-binary=:all:",
        "--progress-bar=raw",
        f"--dest={folder}",
    )
    # pip asks a build backend for the metadata: `without_setup`, not setup.py.
    backend = ("--use-pep517", "--no-build-isolation")
    env = {"PYTHONPATH": str(_WITHOUT_SETUP)}
    argv = pip_argv("download", *options, *backend, wanted)
    on_line = progress_reader(progress.advance)
    run_pip(argv, context.runner, env=env, on_line=on_line)
    (path,) = folder.iterdir()
    if sha256_of(path) != sdist.sha256:
        raise InputError(
            f"{path.name} has sha256 {sha256_of(path)}, not {sdist.sha256}.",
            hint="The file was replaced: do not use it, or pin its digest in kernels/modules.toml.",
        )
    return path


@contextmanager
def _fresh(folder: Path) -> Iterator[Path]:
    """Provide a temporary folder, which is removed unless it was renamed."""
    fresh = Path(tempfile.mkdtemp(prefix=".fetch-", dir=folder))
    try:
        yield fresh
    finally:
        if fresh.is_dir():
            remove(fresh)
