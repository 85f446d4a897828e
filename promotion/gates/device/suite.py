"""Where the tests come from: JAX's own suite in a checkout of one commit, or this project's smoke suite."""

from __future__ import annotations

import functools
import hashlib
import re
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from core.errors import InputError, ProcessError, RequestError
from core.process import Runner
from promotion.gates.device.lease import JaxPlatform
from promotion.gates.device.sessions.passes import Suite
from promotion.gates.device.shell_env import read_script
from promotion.gates.device.suite_requirements import REQUIREMENTS_FILE
from promotion.storage.bucket import sha256_of

SMOKE = Path(__file__).parent.parent / "suites" / "smoke"
SIZES_FILE = Path(__file__).with_name("sizes.toml")
TESTS = "tests"
"""The folder of JAX's tests."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REMOTE = re.compile(r"(?:[a-z][a-z0-9+.-]*://|[\w.-]+@[\w.-]+:).+")
_TAKEN = (TESTS, "docs", "examples", "conftest.py", "pyproject.toml", "pytest.ini")
"""What of a checkout the tests need: some read the documentation, or run what it shows.

Not jax itself: it would be imported instead of the one that is tested.
"""
_CONDITIONS = (*_TAKEN, "ci", REQUIREMENTS_FILE)
"""What of a checkout has a say in what tests do."""
_FETCH_SECONDS = 1800.0


@dataclass(frozen=True, kw_only=True, slots=True)
class SuiteSource:
    """Where a person says that JAX's tests are.

    Attributes:
        place: folder, or address of a git repository.
        commit: 40 hexadecimal digits; empty takes a folder as it is.
    """

    place: str
    commit: str = ""

    @property
    def remote(self) -> bool:
        """Whether it has to be fetched."""
        return _REMOTE.fullmatch(self.place) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class SuiteSize:
    """How much of a suite is run; see sizes.toml."""

    name: str
    files: tuple[str, ...]
    multi: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedSuite:
    """A suite that is ready to run.

    Attributes:
        choose: which tests of it; None takes all.
        notes: what a person should know of it.
        asks: for these packages, as requirements; see `asked.unmet`.
        checkout: where the suite was taken from; None for the smoke suite.
    """

    __test__ = False

    suite: Suite
    choose: Callable[[Sequence[str]], Sequence[str]] | None = None
    notes: tuple[str, ...] = ()
    asks: str = ""
    checkout: Path | None = None


def parse_source(text: str) -> SuiteSource:
    """Read `PATH`, `PATH@commit` or `URL@commit`.

    Raises:
        RequestError: an address without a commit: what was tested has to be known, and stay the same.
    """
    place, at, commit = text.rpartition("@")
    pinned = bool(at) and _COMMIT.fullmatch(commit) is not None
    source = SuiteSource(place=place, commit=commit) if pinned else SuiteSource(place=text)
    if source.remote and not pinned:
        hint = "Write it like URL@0123456789abcdef0123456789abcdef01234567."
        raise RequestError(f"{text} names no commit.", hint=hint)
    return source


@functools.cache
def suite_sizes() -> Mapping[str, SuiteSize]:
    """The sizes, smallest first."""
    table = tomllib.loads(SIZES_FILE.read_text(encoding="utf-8"))
    if table.pop("schema") != 1:
        raise RequestError(f"{SIZES_FILE.name} has another schema.", hint="See its first lines.")
    return {
        name: SuiteSize(name=name, files=tuple(row["files"]), multi=bool(row["multi"])) for name, row in table.items()
    }


def smoke_suite(listed: Sequence[str] = ()) -> PreparedSuite:
    """The suite of this project; its commit is a digest of its files.

    Args:
        listed: files or tests to run; none is all.
    """
    files, notes = _files(SMOKE, SuiteSize(name="list", files=tuple(listed), multi=True)) if listed else (["."], ())
    suite = Suite(root=SMOKE, files=tuple(files), env={}, commit=f"smoke-{_digest(SMOKE)[:16]}")
    return PreparedSuite(suite=suite, choose=_choice(listed), notes=notes)


def suite_id(source: SuiteSource | None, runner: Runner) -> str:
    """Which suite that is: a commit, or a digest of what lies in a folder; None is the smoke suite.

    Raises:
        InputError: there is none, or it is another commit than asked for.
    """
    if source is None:
        return smoke_suite().suite.commit
    return source.commit if source.remote else _place(source, runner)[1]


def jax_suite(
    source: SuiteSource,
    platform: JaxPlatform,
    work: Path,
    runner: Runner,
    *,
    size: str = "",
    listed: Sequence[str] = (),
) -> PreparedSuite:
    """JAX's own suite.

    Args:
        source: where it is.
        platform: whose conditions it shall be run under.
        work: an empty folder.
        runner: for git.
        size: one of `sizes`.
        listed: files and tests to run instead.

    Raises:
        InputError: it cannot be had, or is another commit.
        GateError: what it wants to be run with cannot be read.
        RequestError: a size or list that makes no sense.
    """
    folder, commit = _had(source, work, runner)
    script = read_script(folder, f"ci/run_pytest_{platform}.sh")
    root = work / "suite"
    root.mkdir()
    for name in _TAKEN:
        if (folder / name).is_dir():
            shutil.copytree(folder / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif (folder / name).is_file():
            shutil.copy2(folder / name, root / name)
    if not (root / TESTS).is_dir():
        raise InputError(f"{source.place} has no folder {TESTS}.", hint="Give a checkout of JAX.")
    chosen = SuiteSize(name="list", files=tuple(listed), multi=True) if listed else _size(size)
    files, notes = _files(root, chosen)
    left_out = {*script.ignore}
    suite = Suite(
        root=root,
        files=tuple(file for file in files if file not in left_out),
        env=script.env,
        deselect=(*script.deselect, *(f"{file}::" if file.endswith(".py") else f"{file}/" for file in script.ignore)),
        commit=commit,
    )
    return PreparedSuite(
        suite=suite,
        choose=_choice(listed),
        notes=notes,
        asks=(folder / REQUIREMENTS_FILE).read_text(encoding="utf-8") if (folder / REQUIREMENTS_FILE).is_file() else "",
        checkout=folder,
    )


def _size(name: str) -> SuiteSize:
    if name not in suite_sizes():
        raise RequestError(f"There is no size {name!r}.", hint=f"There are {', '.join(suite_sizes())}.")
    return suite_sizes()[name]


def _choice(listed: Sequence[str]) -> Callable[[Sequence[str]], Sequence[str]] | None:
    tests = frozenset(line for line in listed if "::" in line)
    return functools.partial(_chosen, tests) if tests else None


def _chosen(wanted: frozenset[str], there: Sequence[str]) -> list[str]:
    """Tests that are listed, and all of those files of which none is."""
    files = {test.partition("::")[0] for test in wanted}
    return [test for test in there if test.partition("::")[0] not in files or test in wanted]


def _files(root: Path, size: SuiteSize) -> tuple[list[str], tuple[str, ...]]:
    names = list(dict.fromkeys(line.partition("::")[0] for line in size.files))
    missing = [name for name in names if not (root / name).exists()]
    if len(missing) * 2 > len(names) or not names:
        text = f"The checkout has {len(names) - len(missing)} of the {len(names)} files of size {size.name}."
        raise RequestError(text, hint="Mend promotion/gates/device/sizes.toml, or the list.")
    note = f"The suite has no {', '.join(missing)}, which size {size.name} names."
    return [name for name in names if name not in missing], (note,) if missing else ()


def read_list(path: Path) -> tuple[str, ...]:
    """A file with a file or a test on each line; RequestError when there is none in it."""
    lines = tuple(_lines(path))
    if not lines:
        raise RequestError(f"{path} names no test.", hint="Write a file or a test on each line.")
    return lines


def _lines(path: Path) -> Iterator[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise RequestError(f"{path} cannot be read: {problem}.", hint="Give a list of tests.") from problem
    for line in text.splitlines():
        if word := line.partition("#")[0].strip():
            yield word


def _had(source: SuiteSource, work: Path, runner: Runner) -> tuple[Path, str]:
    """The checkout and its commit."""
    if source.remote:
        return _fetched(source, work / "checkout", runner), source.commit
    return _place(source, runner)


def _place(source: SuiteSource, runner: Runner) -> tuple[Path, str]:
    folder = Path(source.place)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder.", hint="Give a checkout of JAX, or URL@commit.")
    try:
        commit = _git(runner, folder, "rev-parse", "HEAD")
        changed = _git(runner, folder, "status", "--porcelain", "--untracked-files=all", "--", *_CONDITIONS)
    except ProcessError as problem:
        if source.commit:
            text = f"{folder} is no git checkout, so that its commit is unknown."
            raise InputError(text, hint="Leave @commit out, or clone it.") from problem
        return folder, f"tree-{_digest(folder, _CONDITIONS)[:16]}"
    if source.commit and (commit != source.commit or changed):
        is_at = f"{commit} with changes" if changed else commit
        raise InputError(f"{folder} is at {is_at}, not at {source.commit}.", hint="Check the commit out.")
    return folder, f"{commit}+{_digest(folder, _CONDITIONS)[:8]}" if changed else commit


def _fetched(source: SuiteSource, folder: Path, runner: Runner) -> Path:
    folder.mkdir()
    try:
        runner.run(("git", "init", "--quiet", str(folder)))
        _git(runner, folder, "fetch", "--quiet", "--depth=1", "--no-tags", "--", source.place, source.commit)
        _git(runner, folder, "checkout", "--quiet", "--detach", "FETCH_HEAD")
        found = _git(runner, folder, "rev-parse", "HEAD")
    except ProcessError as problem:
        raise InputError(f"{source.place} cannot be had: {problem.message}", hint="Try again.") from problem
    if found != source.commit:
        raise InputError(f"{source.place} gave {found}, not {source.commit}.", hint="Give another commit.")
    return folder


def _git(runner: Runner, folder: Path, *words: str) -> str:
    return runner.run(("git", "-C", str(folder), *words), timeout=_FETCH_SECONDS).stdout.strip()


def _digest(folder: Path, names: Sequence[str] = (".",)) -> str:
    """SHA-256 over the Python files and settings below some names of a folder."""
    sums = hashlib.sha256()
    for top in (folder / name for name in names):
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and path.suffix in (".py", ".ini", ".toml", ".sh", ".env", ".txt"):
                sums.update(f"{path.relative_to(folder)} {sha256_of(path)}\n".encode())
    return sums.hexdigest()
