"""AITER's sources: a checkout, a source archive or a version of the package index; setup.py is never run.

Whatever it is, each file that a module uses has to be the one that `sources.lock` names.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock

from core.atomic import write_whole
from core.digests import file_sha256
from core.errors import InputError, KernelError, ProcessError, RequestError
from core.model import InputFile, Progress
from core.pip import PIP_ENV_OVERRIDES
from core.process import Runner
from core.treefiles import remove
from core.unpack.extract import Limits, extract
from core.unpack.formats import format_of
from kernels.modules import Module, Source

SOURCES_LOCK = Path(__file__).with_name("sources.lock")
_CHILD = Path(__file__).with_name("pip_child.py")
_LIMITS = Limits(size=4_000_000_000, entries=200_000)
_SHOWN = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceTree:
    """An upstream source that is there.

    Attributes:
        folder: what paths of `modules.toml` are relative to.
        files: path -> sha256 of what is locked, checked.
        origin: the record of the archive; None for a checkout.
        name: for people.
    """

    folder: Path
    files: Mapping[str, str]
    origin: InputFile | None
    name: str


def read_lock(path: Path = SOURCES_LOCK) -> dict[str, str]:
    """`sources.lock`: path below the source's folder -> sha256."""
    rows = (line.split("  ", 1) for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    return {name: sha256 for sha256, name in rows}


def used_by(modules: Iterable[Module], files: Iterable[str]) -> tuple[str, ...]:
    """Which of the files of a source the modules use, sorted."""
    exact: set[str] = set()
    folders: set[str] = set()
    tables: set[str] = set()
    for module in modules:
        folders |= set(module.headers)
        exact |= {*module.compiled, *(generator.script for generator in module.generators)}
        # What a generator imports lies beside it.
        folders |= {generator.script.rpartition("/")[0] for generator in module.generators}
        for objects in module.objects:
            for target in objects.targets:
                folder = objects.folder.replace("{target}", target)
                if objects.csv:
                    tables.add(folder)
                    exact.add(f"{folder}/{objects.csv}")
                exact |= {f"{folder}/{name}" for name in objects.files}
    objects_there = (name for name in files if name.endswith(".co") and name.rpartition("/")[0] in tables)
    below = (name for name in files if any(name.startswith(f"{folder}/") for folder in folders))
    return tuple(sorted({*objects_there, *below, *exact}))


def obtain(
    wish: str, source: Source, modules: Iterable[Module], *, cache: Path, runner: Runner, progress: Progress
) -> SourceTree:
    """Find or fetch a source and check what the modules use of it; else as `find`.

    Raises:
        KernelError: a file that is used is missing or another one.
    """
    tree = find(wish, source, cache=cache, runner=runner, progress=progress)
    return replace(tree, files=check(tree.folder, used_by(modules, read_lock()), tree.name))


def find(wish: str, source: Source, *, cache: Path, runner: Runner, progress: Progress) -> SourceTree:
    """Find or fetch a source, without looking into it.

    Args:
        wish: a folder, a source archive, or `project==version`; empty means the pinned version.
        cache: holds `sources/<sha256>`.

    Raises:
        RequestError: it is none of these.
        InputError: it cannot be had, or the pinned archive has another digest.
    """
    version = check_wish(wish, source)
    origin: InputFile | None = None
    if version:
        folder, origin = _from_index(source.project, version, source, cache, runner, progress)
    elif Path(wish).is_dir():
        folder = Path(wish).resolve()
    else:
        folder, origin = _from_archive(Path(wish), source, cache, progress)
    name = origin.filename if origin else str(folder)
    root = folder / source.folder if (folder / source.folder / "hsa").is_dir() else folder
    return SourceTree(folder=root, files={}, origin=origin, name=name)


def check_wish(wish: str, source: Source) -> str:
    """The version that the package index is asked for; empty for a folder or an archive, which is there.

    Raises:
        RequestError: it is none of these.
    """
    found = re.fullmatch(r"([A-Za-z0-9][\w.-]*)==([\w.+!-]+)", wish or f"{source.project}=={source.version}")
    if found is not None and _plain(found[1]) == _plain(source.project):
        return found[2]
    if not Path(wish).exists():
        raise RequestError(
            f"--aiter-source {wish!r} is neither a folder, nor a source archive, nor {source.project}==VERSION.",
            hint="Leave it out to take the pinned version from your package index.",
        )
    return ""


def _plain(project: str) -> str:
    return re.sub(r"[-_.]+", "-", project).lower()


def check(root: Path, wanted: Iterable[str], name: str, lock: Mapping[str, str] | None = None) -> dict[str, str]:
    """Compare files with the lock; those that are wanted and their digests.

    Raises:
        KernelError: all that are missing, changed or not locked.
    """
    lock = read_lock() if lock is None else lock
    missing, changed, unlocked, good = [], [], [], {}
    for path in wanted:
        if path not in lock:
            unlocked.append(path)
        elif not (root / path).is_file():
            missing.append(path)
        elif (digest := file_sha256(root / path)) != lock[path]:
            changed.append(path)
        else:
            good[path] = digest
    problems = [
        f"{what} {_some(paths)}"
        for what, paths in (("lacks", missing), ("has another", changed), ("is not locked for", unlocked))
        if paths
    ]
    if problems:
        raise KernelError(
            f"{name} {'; it '.join(problems)}.",
            hint="Take the pinned version, or look at what differs and run `ci_build kernels lock` with this source.",
        )
    return good


def render_lock(root: Path, modules: Iterable[Module]) -> str:
    """The text of `sources.lock` for a source as it is."""
    names = [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    used = used_by(modules, names)
    head = "# What the kernel modules use of AITER's sources: sha256, path. Written by `ci_build kernels lock`.\n"
    return head + "".join(f"{file_sha256(root / name)}  {name}\n" for name in used)


def write_lock(text: str, path: Path = SOURCES_LOCK) -> None:
    """Let a new lock take the place of the old one."""
    write_whole(path, text.encode())


def _from_index(
    project: str, version: str, source: Source, cache: Path, runner: Runner, progress: Progress
) -> tuple[Path, InputFile]:
    """The tree of an archive that pip's index has; the pinned one is in the cache by its digest."""
    pinned = source.sha256 if (project, version) == (source.project, source.version) else ""
    if pinned and (tree := _tree(cache, pinned)).is_dir():
        return _top(tree), InputFile(filename=source.filename, size=source.size, sha256=pinned, url=_url(tree))
    progress.step(f"fetch the source archive of {project} {version} from the package index")
    (cache / "sources").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache / "sources") as folder:
        argv = (sys.executable, "-I", str(_CHILD), project, version, pinned, folder)
        try:
            done = runner.run(argv, env=PIP_ENV_OVERRIDES, on_line=lambda _: None)
        except ProcessError as error:
            raise ProcessError(
                error.message, hint="\nCheck that the package indexes of pip's configuration answer."
            ) from error
        told = json.loads(done.stdout.splitlines()[-1])
        if not told["filename"]:
            known = ", ".join(told["versions"][-_SHOWN:]) or "none at all"
            raise InputError(f"The package index has no source archive {project}=={version}.", hint=f"It has {known}.")
        if pinned and told["sha256"] != pinned:
            raise InputError(
                f"{told['filename']} has sha256 {told['sha256']}, not {pinned}.",
                hint="Somebody replaced it: do not use it, or pin the new one in kernels/modules.toml on purpose.",
            )
        return _unpack(Path(folder, told["filename"]), cache, progress, told["url"])


def _from_archive(path: Path, source: Source, cache: Path, progress: Progress) -> tuple[Path, InputFile]:
    if path.name == source.filename and file_sha256(path) != source.sha256:
        progress.step(f"{path.name} is not the pinned one; each file that is used is compared")
    return _unpack(path, cache, progress, "")


def _unpack(path: Path, cache: Path, progress: Progress, url: str) -> tuple[Path, InputFile]:
    """Unpack an archive below its sha256, unless it is there."""
    sha256 = file_sha256(path)
    tree = _tree(cache, sha256)
    tree.parent.mkdir(parents=True, exist_ok=True)
    origin = InputFile(filename=path.name, size=path.stat().st_size, sha256=sha256, url=url)
    with FileLock(tree.with_suffix(".lock")):
        if not tree.is_dir():
            progress.step(f"unpack {path.name}")
            fresh = Path(tempfile.mkdtemp(prefix=".unpack-", dir=tree.parent))
            try:
                (fresh / "tree").mkdir()
                with path.open("rb", buffering=0) as stream:
                    extract(stream, format_of(path.name), fresh / "tree", limits=_LIMITS)
                _top(fresh)
                (fresh / "url").write_text(url, encoding="utf-8")
                fresh.rename(tree)
            except BaseException:
                remove(fresh)
                raise
    return _top(tree), origin


def _tree(cache: Path, sha256: str) -> Path:
    return cache / "sources" / sha256


def _url(tree: Path) -> str:
    return (tree / "url").read_text(encoding="utf-8")


def _top(tree: Path) -> Path:
    """The one folder that a source archive holds."""
    tops = list((tree / "tree").iterdir())
    if len(tops) != 1 or not tops[0].is_dir():
        raise InputError(
            f"A source archive holds one folder; this one holds {len(tops)} entries.", hint="Take another."
        )
    return tops[0]


def digest_of(files: Mapping[str, str], below: Iterable[str]) -> str:
    """One digest of the locked files below some folders or files."""
    wanted = tuple(below)
    total = hashlib.sha256()
    for name, sha256 in sorted(files.items()):
        if any(name == folder or name.startswith(f"{folder}/") for folder in wanted):
            total.update(f"{name}\0{sha256}\n".encode())
    return total.hexdigest()


def _some(paths: list[str]) -> str:
    more = len(paths) - _SHOWN
    return ", ".join(paths[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
