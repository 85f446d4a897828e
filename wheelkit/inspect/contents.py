"""Rules on the files of a wheel.

Where they are installed, their names and modes, and their Python code.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import re
import warnings
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from core.errors import ArchiveError
from core.model import Finding
from wheelkit.archive.wheel_archive import WheelArchive
from wheelkit.findings import finding, some
from wheelkit.inspect.metadata_rules import JAX_ROCM

_LIBRARY_SCHEME = re.compile(r"[^/]+\.data/(?:pure|plat)lib/")
_OTHER_SCHEME = re.compile(r"[^/]+\.data/")
_RUN_AT_START = re.compile(r"[^/]+\.pth|(?:site|user)customize(?:/.*|\..+)")
_OF_INSTALLER = re.compile(r"[^/]+\.dist-info/(?:INSTALLER|REQUESTED|direct_url\.json)")
_KIND = re.compile(r".+(\.py[cio]?|\.so(\.\d+)*|\.json|/(py\.typed)?)")
"""Names of files in a pjrt or plugin package; another rule reports bytecode."""
_PURE = frozenset(
    (
        "all",
        "any",
        "callable",
        "getattr",
        "hasattr",
        "isinstance",
        "issubclass",
        "len",
        "str",
        "type",
    )
)
"""Builtin functions that an assert may call."""
_PYTHONS = tuple(f"3.{minor}" for minor in range(7, 30))
_MOST_BYTES = 4 << 20


def check_places(project: str, names: Collection[str]) -> Iterator[Finding]:
    """Check that files go into the project's packages only, and are of the needed kinds.

    Builds leave copies, logs, and sometimes keys in their output folders.

    Sources: PEP 427 (folders of .data), the module `site` of Python (*.pth,
    sitecustomize, usercustomize), PEP 420: `jax_plugins` is a namespace package, which
    a wheel with jax_plugins/__init__.py would close for all others.

    Args:
        project: normalised name; the packages of other projects than jaxlib, pjrt and
            plugin are unknown.
        names: names of the members outside of .dist-info.
    """
    match = JAX_ROCM.fullmatch(project)
    own = {"jaxlib": "jaxlib/"}.get(project, "")
    if match:
        own = (
            f"jax_plugins/xla_rocm{match['major']}/"
            if match["kind"] == "pjrt"
            else f"jax_rocm{match['major']}_plugin/"
        )
    outside = []
    others = []
    for name in names:
        installed = _LIBRARY_SCHEME.sub("", name)
        if _RUN_AT_START.fullmatch(installed):
            yield finding(
                "member-runs-at-start",
                "every start of Python in the environment runs it.",
                member=name,
            )
        elif _OTHER_SCHEME.match(installed) or (own and not installed.startswith(own)):
            outside.append(name)
        elif match and not _KIND.fullmatch(name):
            others.append(name)
    if others:
        text = (
            f"{len(others)} files are neither Python nor libraries nor JSON:"
            f" {some(others)}."
        )
        yield finding("member-unexpected", text, member=others[0])
    if outside:
        where = f"outside of {own}" if own else "outside of packages"
        yield finding(
            "member-outside",
            f"{len(outside)} files are installed {where}: {some(outside)}.",
            member=outside[0],
        )


def check_names(names: Collection[str]) -> Iterator[Finding]:
    """Report names that differ only in case, compiled Python files, and installers' files.

    Sources: PEP 552: Python runs a .pyc with an unchecked hash without a look at its
    source. Recording installed projects: installers write INSTALLER, REQUESTED and
    direct_url.json, which tell where a project came from.
    """
    for name in names:
        if _OF_INSTALLER.fullmatch(name):
            yield finding(
                "metadata-invalid", "only installers write this file.", member=name
            )
    same = defaultdict(list)
    for name in names:
        same[name.casefold()].append(name)
    for group in same.values():
        if len(group) > 1:
            yield finding(
                "member-names-clash",
                f"the names differ in case only: {', '.join(group)}.",
                member=group[0],
            )
    if compiled := [name for name in names if name.endswith((".pyc", ".pyo"))]:
        text = (
            f"{len(compiled)} compiled Python files, such as {compiled[0]}, may differ"
            " from their sources."
        )
        yield finding("bytecode-included", text, member=compiled[0])


def check_modes(files: Mapping[str, int]) -> Iterator[Finding]:
    """Report files that only their owner can read, or that everybody can change.

    Args:
        files: member name -> permission bits; 0 if the archive has none.
    """
    private = [name for name, mode in files.items() if mode and mode & 0o044 != 0o044]
    if private:
        mode = files[private[0]]
        text = (
            f"{len(private)} of {len(files)} files are not readable by all users, such"
            f" as {private[0]} with {mode:04o}."
        )
        yield finding("mode-private", text)
    if public := [name for name, mode in files.items() if mode & 0o002]:
        mode = files[public[0]]
        text = (
            f"all users may change {len(public)} of {len(files)} files, such as"
            f" {public[0]} with {mode:04o}."
        )
        yield finding("mode-writable", text, member=public[0])


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Pause the garbage collections of this process."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@functools.lru_cache(maxsize=1024)
def _syntax(source: bytes, version: tuple[int, int] | None) -> tuple[str, str]:
    """Return place and reason of a syntax error, and of the first warning, both empty without one.

    Wheels of several Pythons contain the same files, which are parsed once.
    """
    try:
        # A syntax tree is no garbage: collections would take four fifths of the time.
        with (
            warnings.catch_warnings(record=True, action="always") as caught,
            _no_garbage_collection(),
        ):
            ast.parse(source, feature_version=version)
    except (SyntaxError, ValueError) as error:
        why = error.msg if isinstance(error, SyntaxError) else str(error)
        line = (
            f" in line {error.lineno}"
            if isinstance(error, SyntaxError) and error.lineno
            else ""
        )
        return f"{line}: {why}", ""
    return "", next(
        (f" in line {warning.lineno}: {warning.message}" for warning in caught), ""
    )


def _acting_assert(source: bytes) -> int:
    """Return the line of the first assert that calls an impure function, or 0."""
    try:
        with _no_garbage_collection():
            tree = (
                ast.parse(source)
                if b"assert" in source
                else ast.Module(body=[], type_ignores=[])
            )
    except (SyntaxError, ValueError):
        return 0  # reported as invalid
    for node in (node for node in ast.walk(tree) if isinstance(node, ast.Assert)):
        for part in ast.walk(node.test):
            if isinstance(part, ast.Call) and not _is_pure(part.func):
                return node.lineno
    return 0


def _is_pure(function: ast.expr) -> bool:
    if isinstance(function, ast.Attribute):
        return function.attr.startswith("is")
    return isinstance(function, ast.Name) and function.id in _PURE


def check_asserts(archive: WheelArchive, names: Iterable[str]) -> Iterator[Finding]:
    """Report asserts of a small package that call functions, which `python -O` leaves out."""
    for name in (name for name in names if name.endswith(".py")):
        try:
            line = _acting_assert(archive.read(name, _MOST_BYTES))
        except ArchiveError:
            continue  # checks of RECORD and CRC report a damaged member
        if line:
            yield finding(
                "assert-acts",
                f"the assert in line {line} calls a function.",
                member=name,
            )


def check_python(
    archive: WheelArchive, names: Sequence[str], requires_python: str
) -> Iterator[Finding]:
    """Check that each Python file has the syntax of the lowest Python that the wheel accepts.

    Syntax that is newer than this interpreter is an error too. Invalid escape
    sequences, of which Python 3.12 and later warn on every installation, will be errors
    (Python Language Reference, "String and Bytes literals").
    """
    try:
        accepted = SpecifierSet(requires_python)
    except InvalidSpecifier:
        accepted = SpecifierSet()
    lowest = next(
        (python for python in _PYTHONS if requires_python and python in accepted), None
    )
    version = None if lowest is None else (3, int(lowest.partition(".")[2]))
    for name in names:
        if not name.endswith(".py"):
            continue
        try:
            error, warning = _syntax(archive.read(name, _MOST_BYTES), version)
        except ArchiveError:
            continue  # checks of RECORD and CRC report a damaged member
        if error:
            text = f"Python {lowest or 'of this program'} cannot parse it{error}."
            yield finding("python-invalid", text, member=name)
        if warning:
            yield finding(
                "python-warns",
                f"the compiler of Python warns of it{warning}.",
                member=name,
            )
