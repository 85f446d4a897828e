"""Requirements of JAX's suite beyond the wheels: a release of jax, and its test helpers."""

from __future__ import annotations

import re
import shutil
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
    for source in sorted((checkout / _PACKAGE).rglob("*.py")):
        path = source.relative_to(checkout)
        target = site / path
        taken = [target, target.with_suffix("")]
        taken += [(site / folder).with_suffix(".py") for folder in path.parents[:-1]]
        if not any(place.exists() for place in taken):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            copied.append(str(path))
    return tuple(copied)
