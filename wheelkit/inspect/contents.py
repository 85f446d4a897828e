"""Rules on the files of a wheel: their places, their modes, and their Python syntax."""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from core.errors import ArchiveError
from core.model import Finding
from wheelkit.archive.wheel_archive import WheelArchive
from wheelkit.findings import finding, some
from wheelkit.inspect.metadata_rules import JAX_ROCM

_LIBRARY_SCHEME = re.compile(r"[^/]+\.data/(?:pure|plat)lib/")
_OTHER_SCHEME = re.compile(r"[^/]+\.data/")
_RUN_AT_START = re.compile(r"[^/]+\.pth|(?:site|user)customize(?:/.*|\..+)")
_PYTHONS = range(7, 30)
"""Minor numbers of Python 3 that a wheel may accept."""
_MOST_BYTES = 4 << 20


def check_places(project: str, names: Collection[str]) -> Iterator[Finding]:
    """Check that files go into the project's packages only.

    Sources: PEP 427 (folders of .data), the module `site` of Python (*.pth,
    sitecustomize, usercustomize), PEP 420: `jax_plugins` is a namespace package, which
    a wheel with jax_plugins/__init__.py would close for all others.

    Args:
        project: normalised name; the packages of other projects than jaxlib, pjrt and
            plugin are unknown.
        names: names of the members outside of .dist-info.
    """
    match = JAX_ROCM.fullmatch(project)
    own = "jaxlib/" if project == "jaxlib" else ""
    if match and match["kind"] == "pjrt":
        own = f"jax_plugins/xla_rocm{match['major']}/"
    elif match:
        own = f"jax_rocm{match['major']}_plugin/"
    outside = []
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
    if outside:
        where = f"outside of {own}" if own else "outside of packages"
        yield finding(
            "member-outside",
            f"{len(outside)} files are installed {where}: {some(outside)}.",
            member=outside[0],
        )


def check_modes(files: Mapping[str, int]) -> Iterator[Finding]:
    """Report files that only their owner can read.

    Args:
        files: member name -> permission bits; 0 if the archive has none.
    """
    private = [name for name, mode in files.items() if mode and mode & 0o044 != 0o044]
    if private:
        text = (
            f"{len(private)} of {len(files)} files are not readable by all users, such"
            f" as {private[0]} with {files[private[0]]:04o}."
        )
        yield finding("mode-private", text)


@functools.lru_cache(maxsize=1024)
def _syntax_problem(source: bytes, minor: int | None) -> str:
    """Return the place and reason of a syntax error for Python 3.`minor`; empty without one.

    Wheels of several Pythons contain the same files, which are parsed once.
    """
    # A syntax tree is no garbage: collections would take four fifths of the time.
    enabled = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings(action="ignore"):
            ast.parse(source, feature_version=minor and (3, minor))
    except SyntaxError as error:
        return f" in line {error.lineno}: {error.msg}"
    except ValueError as error:
        return f": {error}"
    finally:
        if enabled:
            gc.enable()
    return ""


def check_python(
    archive: WheelArchive, names: Sequence[str], requires_python: str
) -> Iterator[Finding]:
    """Check that each Python file has the syntax of the lowest Python that the wheel accepts.

    Syntax that is newer than this interpreter is an error too.
    """
    minor = None
    if requires_python:
        with contextlib.suppress(InvalidSpecifier):
            accepted = SpecifierSet(requires_python)
            minor = next((n for n in _PYTHONS if f"3.{n}" in accepted), None)
    python = "Python of this program" if minor is None else f"Python 3.{minor}"
    for name in names:
        if not name.endswith(".py"):
            continue
        try:
            problem = _syntax_problem(archive.read(name, _MOST_BYTES), minor)
        except ArchiveError:
            continue  # checks of RECORD and CRC report a damaged member
        if problem:
            text = f"{python} cannot parse it{problem}."
            yield finding("python-invalid", text, member=name)
