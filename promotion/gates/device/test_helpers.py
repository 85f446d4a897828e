"""What JAX's tests import of jax and its wheel leaves out: helpers for tests, which are there in the checkout alone.

JAX's own scripts run from the checkout, so that its jax is imported. Here the installed one is, and only what that does
not have at all is borrowed.
"""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

_PACKAGE = "jax"


def borrow(checkout: Path, site: Path) -> tuple[str, ...]:
    """Copy the modules beside the installed ones; nothing that is there is touched.

    Args:
        checkout: of JAX.
        site: site-packages that hold jax.

    Returns:
        Paths of what was copied, relative to both.
    """
    if not (checkout / _PACKAGE).is_dir():
        return ()
    found: dict[str, None] = {}
    to_read = sorted((checkout / "tests").rglob("*.py"))
    while to_read:
        new = [path for path in _wanted(checkout, site, to_read) if path not in found]
        found |= dict.fromkeys(new)
        to_read = [checkout / path for path in dict.fromkeys(new)]
    for path in found:
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(checkout / path, site / path)
    return tuple(sorted(found))


def _wanted(checkout: Path, site: Path, files: Iterable[Path]) -> Iterator[str]:
    """Files that these import, with those of the packages around them."""
    for name in dict.fromkeys(name for file in files for name in _imports(checkout, file)):
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            path = "/".join(parts[:end])
            for file in (f"{path}.py", f"{path}/__init__.py"):
                if (checkout / file).is_file() and not (site / path).is_dir() and not (site / f"{path}.py").exists():
                    yield file


def _imports(checkout: Path, file: Path) -> Iterator[str]:
    """Modules of jax that a file may import; one that is no Python is for pytest to complain of."""
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
