"""Test suites: JAX's own suite from a checkout of one commit, or this project's smoke suite."""

from __future__ import annotations

import functools
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from core.digests import sha256_of
from core.errors import InputError, ProcessError, RequestError
from core.frozen import frozen
from core.process import Runner
from core.records import read_toml
from promotion.gates.device.lease import JaxPlatform
from promotion.gates.device.results import file_of
from promotion.gates.device.sessions.passes import Suite

SMOKE = Path(__file__).parent.parent / "suites" / "smoke"
SUITE_FILE = Path(__file__).with_name("jax_suite.toml")
TESTS = "tests"
"""Folder of JAX's tests."""
CORRECT = "Correct --test."
"""Hint for listed tests that do not exist."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REMOTE = re.compile(r"(?:[a-z][a-z0-9+.-]*://|[\w.-]+@[\w.-]+:).+")
_COPIED = (TESTS, "docs", "examples", "conftest.py", "pyproject.toml", "pytest.ini")
"""Parts of the checkout that tests need, and on which their outcome depends.

Some tests read or run the documentation. jax itself is not copied, since tests would
import it instead of the installed jax.
"""
_FETCH_SECONDS = 1800.0
_RELEASE = re.compile(r"""^_version = ["']([^"']+)["']""", re.MULTILINE)


@frozen
class SuiteSource:
    """Location of JAX's tests.

    Attributes:
        location: folder, or address of a git repository.
        commit: 40 hexadecimal digits, which are fetched; empty takes the folder as it is.
    """

    location: str
    commit: str = ""

    @property
    def remote(self) -> bool:
        """Return whether the location is an address."""
        return _REMOTE.fullmatch(self.location) is not None

    @property
    def absolute(self) -> str:
        """Return the source as text that is valid in any folder."""
        place = self.location if self.remote else str(Path(self.location).absolute())
        return f"{place}@{self.commit}".rstrip("@")


@frozen
class SuiteSize:
    """Extent of a suite; see jax_suite.toml."""

    files: tuple[str, ...]
    multi: bool


@frozen
class _SuiteConditions:
    """Conditions of JAX's CI on one platform; see jax_suite.toml."""

    env: Mapping[str, str]
    deselect: tuple[str, ...] = ()


@frozen
class _SuiteTable:
    """Content of jax_suite.toml."""

    sizes: Mapping[str, SuiteSize]
    platforms: Mapping[JaxPlatform, _SuiteConditions]


def parse_source(text: str) -> SuiteSource:
    """Parse `PATH`, `PATH@commit` or `URL@commit`.

    Raises:
        RequestError: the address of a repository has no commit, so that the run would
            not be reproducible.
    """
    location, at, commit = text.rpartition("@")
    pinned = bool(at) and _COMMIT.fullmatch(commit) is not None
    source = SuiteSource(location=text)
    if pinned:
        source = SuiteSource(location=location, commit=commit)
    if source.remote and not pinned:
        hint = "Write --jax-tests like URL@0123456789abcdef0123456789abcdef01234567."
        raise RequestError(f"The address has no commit: {text}.", hint=hint)
    return source


@functools.cache
def _suite_table() -> _SuiteTable:
    return read_toml(SUITE_FILE, _SuiteTable, schema=1)


def suite_sizes() -> Mapping[str, SuiteSize]:
    """Return the sizes of JAX's suite, smallest first."""
    return _suite_table().sizes


def smoke_suite(listed: Sequence[str] = ()) -> Suite:
    """Return this project's smoke suite; its commit is a digest of its files.

    Args:
        listed: files or tests to run; empty runs all.

    Raises:
        RequestError: the suite lacks a listed file.
    """
    files = _listed_files(SMOKE, listed) if listed else (".",)
    commit = f"smoke-{_digest(SMOKE)[:16]}"
    return Suite(root=SMOKE, files=files, env={}, commit=commit)


def suite_id(source: SuiteSource | None) -> str:
    """Return the suite's commit, or a digest of its folder; a source of None means the smoke suite.

    Raises:
        InputError: the folder does not exist.
    """
    if source is None:
        return smoke_suite().commit
    folder = Path(source.location)
    if source.commit:
        return source.commit
    if not folder.is_dir():
        raise InputError(
            f"{folder} is not a folder.", hint="Pass a checkout of JAX, or URL@commit."
        )
    return f"tree-{_digest(folder, _COPIED)[:16]}"


def jax_suite(
    source: SuiteSource,
    platform: JaxPlatform,
    work: Path,
    runner: Runner,
    *,
    size: str = "",
    listed: Sequence[str] = (),
) -> Suite:
    """Copy JAX's suite from its checkout, to run it under the conditions of JAX's CI.

    Args:
        platform: platform whose conditions apply.
        work: an empty folder.
        size: name of a size in `suite_sizes`.
        listed: files and tests to run instead of a size.

    Raises:
        InputError: the suite does not exist, or its commit cannot be fetched.
        RequestError: the size or the list is invalid.
    """
    folder = Path(source.location)
    commit = suite_id(source)
    if source.commit:
        folder = work / "checkout"
        fetch_suite(source, folder, runner)
    root = work / "suite"
    root.mkdir()
    for name in _COPIED:
        if (folder / name).is_dir():
            shutil.copytree(
                folder / name, root / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        elif (folder / name).is_file():
            shutil.copy2(folder / name, root / name)
    if not (root / TESTS).is_dir():
        raise InputError(
            f"{source.location} has no folder {TESTS}.", hint="Pass a checkout of JAX."
        )
    if not listed and size not in suite_sizes():
        raise RequestError(
            f"Unknown size: {size!r}.", hint=f"Choose from {', '.join(suite_sizes())}."
        )
    notes: tuple[str, ...] = ()
    if listed:
        files = _listed_files(root, listed)
    else:
        files, notes = _files_of_size(root, size)
    conditions = _suite_table().platforms[platform]
    return Suite(
        root=root,
        files=files,
        env=conditions.env,
        deselect=conditions.deselect,
        commit=commit,
        notes=notes,
        checkout=folder,
    )


def _listed_files(root: Path, listed: Sequence[str]) -> tuple[str, ...]:
    """Return the files of listed tests and files; RequestError if one does not exist."""
    names = tuple(dict.fromkeys(map(file_of, listed)))
    if missing := [name for name in names if not (root / name).exists()]:
        raise RequestError(f"The suite has no {', '.join(missing)}.", hint=CORRECT)
    return names


def _files_of_size(root: Path, size: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the files of a size that exist, and a note about missing files."""
    names = suite_sizes()[size].files
    missing = [name for name in names if not (root / name).exists()]
    if len(missing) * 2 > len(names):
        text = (
            f"The checkout has only {len(names) - len(missing)} of the {len(names)}"
            f" files of size {size}."
        )
        raise RequestError(
            text,
            hint="Fix promotion/gates/device/jax_suite.toml, or give another checkout.",
        )
    notes = (f"The suite lacks {', '.join(missing)} of size {size}.",)
    files = tuple(name for name in names if name not in missing)
    return files, notes if missing else ()


def fetch_suite(
    source: SuiteSource, folder: Path, runner: Runner, *, bare: bool = False
) -> None:
    """Fetch the commit of a suite into a new repository.

    Args:
        bare: whether the repository has no files, but a branch with the commit.

    Raises:
        InputError: the commit cannot be fetched.
    """
    location = source.location
    if not source.remote:
        location = str(Path(location).absolute())
    options = ("--quiet", "--depth=1", "--no-tags", "--", location, source.commit)
    kind = ("--bare",) if bare else ()
    try:
        runner.run(("git", "init", "--quiet", *kind, str(folder)))
        _git(runner, folder, "fetch", *options)
        if bare:
            _git(runner, folder, "update-ref", "refs/heads/suite", source.commit)
            _git(runner, folder, "symbolic-ref", "HEAD", "refs/heads/suite")
        else:
            _git(runner, folder, "checkout", "--quiet", "--detach", "FETCH_HEAD")
    except ProcessError as problem:
        raise InputError(
            f"Cannot fetch {location}: {problem.message}",
            hint="Check the address and the commit, and the network.",
        ) from problem


def _git(runner: Runner, folder: Path, *arguments: str) -> None:
    runner.run(("git", "-C", str(folder), *arguments), timeout=_FETCH_SECONDS)


def _digest(folder: Path, names: Sequence[str] = (".",)) -> str:
    """Return the SHA-256 of the Python files and settings below these names."""
    lines = []
    for top in (folder / name for name in names):
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and path.suffix in (".py", ".ini", ".toml"):
                lines.append(f"{path.relative_to(folder)} {sha256_of(path)}\n")
    return sha256_of("".join(lines).encode())


def release_mismatch(checkout: Path, jax: str) -> str:
    """Return a note if the suite belongs to another release than the jax under test.

    Otherwise "".
    """
    try:
        match = _RELEASE.search(
            (checkout / "jax/version.py").read_text(encoding="utf-8")
        )
    except (OSError, UnicodeDecodeError):
        return ""
    if match is None or match[1] == jax:
        return ""
    return (
        f"The suite belongs to jax {match[1]} but tests jax {jax}; failures may come"
        " from this mismatch."
    )


def copy_test_helpers(checkout: Path, site: Path) -> tuple[str, ...]:
    """Copy modules of jax that its wheel lacks, such as helpers of tests, to the site.

    JAX's own scripts import jax from the checkout. Here the installed jax is under
    test, so no installed file changes, and no copied module takes the place of one.

    Args:
        checkout: checkout of JAX.
        site: site-packages that contain jax.

    Returns:
        Paths of the copied files, relative to the checkout and to the site.
    """
    copied = []
    for source in sorted((checkout / "jax").rglob("*.py")):
        path = source.relative_to(checkout)
        target = site / path
        taken = [target, target.with_suffix("")]
        taken += [(site / folder).with_suffix(".py") for folder in path.parents[:-1]]
        if not any(place.exists() for place in taken):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            copied.append(str(path))
    return tuple(copied)
