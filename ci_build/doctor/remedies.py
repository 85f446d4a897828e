"""Commands that fix problems, as a person types them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

from ci_build.doctor.choice import BEST_PYTHON, PackageChoice
from ci_build.doctor.examined import Python

FRESH = "~/jax-rocm"
"""A virtual environment, where the Python at hand cannot take packages."""
CONTAINER_FLAGS = "--device=/dev/kfd --device=/dev/dri --group-add video --group-add render --shm-size=64g"


def pip(python: Python, *words: str) -> str:
    """Return a pip command for this Python."""
    if python.pip:
        return f"{_typed(python)} -m pip {join(words)}"
    return f"uv pip {words[0]} --python {_typed(python)} {join(words[1:])}"


def _typed(python: Python) -> str:
    # A quoted tilde would be no home folder.
    return python.executable if python.executable.startswith("~/") else shlex.quote(python.executable)


def join(words: Sequence[str]) -> str:
    """Words of a command line."""
    return " ".join(map(shlex.quote, words))


def another_python(python: Python) -> tuple[str, Python]:
    """Return the command that makes a virtual environment of a supported Python, which uv brings, and that Python."""
    executable = f"{FRESH}/bin/python"
    environment = replace(
        python, version=BEST_PYTHON, implementation="CPython", free_threaded=False, executable=executable
    )
    return f"uv venv --seed --python {BEST_PYTHON} {FRESH}", replace(environment, virtual=True, managed=False, pip=True)


def install(python: Python, choice: PackageChoice) -> str:
    """Install exact versions; of a version such as 0.10.2.* the newest post-release."""
    words = [f"{name}=={version}" for name, version in choice.packages.items()]
    return _into(python, "install", *index_options(choice), *words)


def index_options(choice: PackageChoice) -> tuple[str, ...]:
    """Return pip's options for the index of the packages."""
    return ("--extra-index-url", choice.index) if choice.index else ()


def uninstall(python: Python, *names: str) -> str:
    """Take packages out."""
    confirmation = ("-y",) if python.pip else ()  # uv does not ask
    return pip(python, "uninstall", *confirmation, *names)


def install_rocm(python: Python, major: int, targets: Sequence[str], index: str) -> str:
    """Install ROCm's wheels beside jax; device code comes by extras."""
    extras = ",".join(["libraries", *(f"device-{target}" for target in targets)])
    return _into(python, "install", "--index-url", index, f"rocm[{extras}]=={major}.*")


def _into(python: Python, *words: str) -> str:
    if not python.managed or python.virtual:
        return pip(python, *words)
    # pip refuses to touch the Python of the operating system (PEP 668).
    return f"{_typed(python)} -m venv {FRESH} && {FRESH}/bin/python -m pip {join(words)}"
