"""AITER's sources.

A checkout, a source archive or a version of the package index. setup.py is never run.

Every file that a module uses must match `sources.lock`.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from packaging.utils import canonicalize_name

from core.digests import sha256_of
from core.errors import InputError, KernelError, RequestError
from core.frozen import frozen
from core.model import InputFile, Progress
from core.pip import pip_argv, run_pip
from core.process import Runner
from core.store import hold_lock, remove
from core.unpack.decompress import chunks_of, format_of
from core.unpack.extract import Limits, extract
from kernels.modules import KernelModule, UpstreamSource

SOURCES_LOCK = Path(__file__).with_name("sources.lock")
_WITHOUT_SETUP = Path(__file__).with_name("without_setup")
_LIMITS = Limits(size=4_000_000_000, entries=200_000)
_SHOWN = 8


@frozen
class SourceTree:
    """An upstream source on disk.

    Attributes:
        folder: base of the paths in `modules.toml`.
        files: path -> sha256 of the locked files, verified.
        origin: record of the archive; None for a checkout.
        name: display name.
    """

    folder: Path
    files: Mapping[str, str]
    origin: InputFile | None
    name: str


def read_lock() -> dict[str, str]:
    """Return the content of `sources.lock`: path below the source's folder -> sha256."""
    lock = {}
    for line in SOURCES_LOCK.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            sha256, _, name = line.partition("  ")
            lock[name] = sha256
    return lock


def used_by(modules: Iterable[KernelModule], files: Iterable[str]) -> tuple[str, ...]:
    """Return the sorted files of a source that the modules use."""
    exact: set[str] = set()
    folders: set[str] = set()
    tables: set[str] = set()
    for module in modules:
        folders.update(module.headers)
        for generator in module.generators:
            exact.add(generator.script)
            # A generator imports modules from its own folder.
            folders.add(generator.script.rpartition("/")[0])
        for objects in module.objects:
            if objects.tuned:
                exact.add(objects.tuned)
            for target in objects.targets:
                folder = objects.folder.replace("{target}", target)
                exact.update(f"{folder}/{name}" for name in objects.files)
                if objects.csv:
                    tables.add(folder)
                    exact.add(f"{folder}/{objects.csv}")
    below = tuple(f"{folder}/" for folder in folders)
    for name in files:
        is_object = name.endswith(".co") and name.rpartition("/")[0] in tables
        if is_object or name.startswith(below):
            exact.add(name)
    return tuple(sorted(exact))


def obtain(
    wish: str,
    source: UpstreamSource,
    modules: Iterable[KernelModule],
    *,
    cache: Path,
    runner: Runner,
    progress: Progress,
) -> SourceTree:
    """Find or download a source and verify the files that the modules use.

    See `find` for the arguments.

    Raises:
        KernelError: a used file is missing or differs from `sources.lock`.
    """
    tree = find(wish, source, cache=cache, runner=runner, progress=progress)
    lock = read_lock()
    used = used_by(modules, lock)
    return replace(tree, files=check(tree.folder, used, tree.name, lock))


def find(
    wish: str,
    source: UpstreamSource,
    *,
    cache: Path,
    runner: Runner,
    progress: Progress,
) -> SourceTree:
    """Find or download a source without verifying its files.

    Args:
        wish: a folder, a source archive, or `project==version`; empty means the pinned
            version.
        cache: folder that contains `sources/<sha256>`.

    Raises:
        RequestError: `wish` is none of these.
        InputError: the source is not available, or the pinned archive has another
            digest.
    """
    version = check_wish(wish, source)
    origin: InputFile | None = None
    if version:
        folder, origin = _from_index(version, source, cache, runner, progress)
    elif Path(wish).is_dir():
        folder = Path(wish).resolve()
    else:
        path = Path(wish)
        if path.name == source.filename and sha256_of(path) != source.sha256:
            progress.step(
                f"{path.name} differs from the pinned archive; each used file is"
                " compared with sources.lock"
            )
        folder, origin = _unpack(path, cache, progress)
    name = origin.filename if origin else str(folder)
    if (folder / source.folder / "hsa").is_dir():
        folder = folder / source.folder
    return SourceTree(folder=folder, files={}, origin=origin, name=name)


def check_wish(wish: str, source: UpstreamSource) -> str:
    """Return the version to download from the package index.

    Empty for an existing folder or archive.

    Raises:
        RequestError: `wish` is neither a version of the source nor an existing path.
    """
    if not wish:
        return source.version
    match = re.fullmatch(r"([A-Za-z0-9][\w.-]*)==([\w.+!-]+)", wish)
    if match and canonicalize_name(match[1]) == canonicalize_name(source.project):
        return match[2]
    if not Path(wish).exists():
        raise RequestError(
            "--aiter-source is not a folder, a source archive or"
            f" {source.project}==VERSION: {wish!r}.",
            hint="Omit it to use the pinned version of the package index.",
        )
    return ""


def check(
    root: Path, wanted: Iterable[str], name: str, lock: Mapping[str, str]
) -> dict[str, str]:
    """Compare files with the lock and return their digests.

    Raises:
        KernelError: files are missing, changed or not locked; the message lists them.
    """
    faults: dict[str, list[str]] = {
        "lacks": [],
        "has changed": [],
        "needs unlocked": [],
    }
    good = {}
    for path in wanted:
        file = located(root, path)
        if path not in lock:
            faults["needs unlocked"].append(path)
        elif not file.is_file():
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
                "Use the pinned version, or review the differences and run `ci_build"
                " kernels list --update` with this source."
            ),
        )
    return good


def render_lock(root: Path, modules: Iterable[KernelModule]) -> str:
    """Return the text of `sources.lock` for a source."""
    files = (
        path for path in root.rglob("*") if path.is_file() and not path.is_symlink()
    )
    used = used_by(modules, [str(path.relative_to(root)) for path in files])
    head = (
        "# Files of AITER's sources that the kernel modules use: sha256, path. Written by"
        " `ci_build kernels list --update`."
    )
    lines = [head]
    lines += [f"{sha256_of(located(root, name))}  {name}" for name in used]
    return "\n".join([*lines, ""])


def located(root: Path, name: str) -> Path:
    """Return the path of a locked file.

    AITER's Python package lies beside the source's folder in an archive.
    """
    path = root / name
    beside = name.startswith("aiter/") and not path.exists()
    return root.parent / name if beside else path


def _from_index(
    version: str,
    source: UpstreamSource,
    cache: Path,
    runner: Runner,
    progress: Progress,
) -> tuple[Path, InputFile]:
    """Return the tree of an archive from the package index.

    The pinned archive is cached by its digest.
    """
    pinned = source.sha256 if version == source.version else ""
    if pinned and (tree := cache / "sources" / pinned).is_dir():
        return _top(tree), InputFile(
            filename=source.filename, size=source.size, sha256=pinned, url=""
        )
    wanted = f"{source.project}=={version}"
    progress.step(f"fetch the source archive of {wanted} from the package index")
    (cache / "sources").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache / "sources") as folder:
        options = ("--no-deps", "--no-binary=:all:", f"--dest={folder}")
        # pip asks a build backend for the metadata: `without_setup`, not setup.py.
        backend = ("--use-pep517", "--no-build-isolation")
        env = {"PYTHONPATH": str(_WITHOUT_SETUP)}
        run_pip(pip_argv("download", *options, *backend, wanted), runner, env=env)
        (path,) = Path(folder).iterdir()
        if pinned and sha256_of(path) != pinned:
            raise InputError(
                f"{path.name} has sha256 {sha256_of(path)}, not {pinned}.",
                hint=(
                    "The file was replaced: do not use it, or pin the new digest in"
                    " kernels/modules.toml."
                ),
            )
        return _unpack(path, cache, progress)


def _unpack(path: Path, cache: Path, progress: Progress) -> tuple[Path, InputFile]:
    """Unpack an archive into the cache folder of its sha256, unless that folder exists."""
    sha256 = sha256_of(path)
    tree = cache / "sources" / sha256
    tree.parent.mkdir(parents=True, exist_ok=True)
    origin = InputFile(
        filename=path.name, size=path.stat().st_size, sha256=sha256, url=""
    )
    with hold_lock(tree.with_suffix(".lock")):
        if not tree.is_dir():
            progress.step(f"unpack {path.name}")
            fresh = Path(tempfile.mkdtemp(prefix=".unpack-", dir=tree.parent))
            try:
                (fresh / "tree").mkdir()
                with path.open("rb", buffering=0) as stream:
                    extract(
                        chunks_of(stream),
                        format_of(path.name),
                        fresh / "tree",
                        limits=_LIMITS,
                    )
                _top(fresh)
                fresh.rename(tree)
            except BaseException:
                remove(fresh)
                raise
    return _top(tree), origin


def _top(tree: Path) -> Path:
    """Return the single top folder of a source archive."""
    tops = list((tree / "tree").iterdir())
    if len(tops) != 1 or not tops[0].is_dir():
        raise InputError(
            f"A source archive must contain one top-level folder, not {len(tops)}"
            " entries.",
            hint="Use another archive.",
        )
    return tops[0]


def digest_of(files: Mapping[str, str], below: Iterable[str]) -> str:
    """Return one digest of the locked files below some folders or files."""
    paths = tuple(below)
    total = hashlib.sha256()
    for name, sha256 in sorted(files.items()):
        if any(name == folder or name.startswith(f"{folder}/") for folder in paths):
            total.update(f"{name}\0{sha256}\n".encode())
    return total.hexdigest()
