"""Requirements of JAX's suite beyond the wheels: a release of jax, and its test helpers."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

_RELEASE = re.compile(r"""^_version = ["']([^"']+)["']""", re.MULTILINE)
_PACKAGE = "jax"


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
    """Copy modules that JAX's tests import, but jax's wheel lacks, to the site.

    JAX's own scripts import jax from the checkout. Here the installed jax is under
    test, so only modules that it does not contain are copied; no installed file
    changes.

    Args:
        checkout: checkout of JAX.
        site: site-packages that contain jax.

    Returns:
        Paths of the copied files, relative to the checkout and to the site.
    """
    if not (checkout / _PACKAGE).is_dir():
        return ()
    copied: dict[str, None] = {}
    to_read = sorted((checkout / "tests").rglob("*.py"))
    while to_read:
        new = [
            path
            for path in _missing_modules(checkout, site, to_read)
            if path not in copied
        ]
        copied |= dict.fromkeys(new)
        to_read = [checkout / path for path in dict.fromkeys(new)]
    for path in copied:
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(checkout / path, site / path)
    return tuple(sorted(copied))


def _missing_modules(
    checkout: Path, site: Path, files: Iterable[Path]
) -> Iterator[str]:
    """Yield imported modules that the site lacks, with their packages' `__init__.py`."""
    names: dict[str, None] = {}
    for source in files:
        names |= dict.fromkeys(_imports(checkout, source))
    for name in names:
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            path = "/".join(parts[:end])
            for file in (f"{path}.py", f"{path}/__init__.py"):
                if (
                    (checkout / file).is_file()
                    and not (site / path).is_dir()
                    and not (site / f"{path}.py").exists()
                ):
                    yield file


def _imports(checkout: Path, file: Path) -> Iterator[str]:
    """Yield the modules of jax that a file may import; pytest reports a file with syntax errors."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError):
        return
    package = file.relative_to(checkout).parent.parts
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*above, *filter(None, [node.module])))
            names = [module, *(f"{module}.{alias.name}" for alias in node.names)]
        yield from (name for name in names if name.partition(".")[0] == _PACKAGE)
