"""Surroundings of a kernel build."""

from __future__ import annotations

from pathlib import Path

from core.frozen import frozen
from core.model import Progress
from core.process import Runner

FOLDER = "kernels"
"""Folder in the program's cache."""


@frozen
class BuildContext:
    """Cache, processes and progress of a kernel build.

    Attributes:
        cache: the folder `kernels` of the cache.
    """

    cache: Path
    runner: Runner
    progress: Progress


def context_in(cache: Path, runner: Runner, progress: Progress) -> BuildContext:
    """Return the context in the program's cache."""
    # Compilers run in another folder, so the path must be absolute.
    own = cache.absolute() / FOLDER
    return BuildContext(cache=own, runner=runner, progress=progress)
