"""Commands that fix problems, as a person types them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ci_build.doctor.choice import PackageChoice
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


def another_python(version: str) -> tuple[str, Python]:
    """Give the command that makes a virtual environment of another Python, which uv brings, and that Python."""
    made = Python(
        version=version,
        implementation="CPython",
        free_threaded=False,
        executable=f"{FRESH}/bin/python",
        virtual=True,
        managed=False,
        pip=True,
        path=(),
    )
    return f"uv venv --seed --python {version} {FRESH}", made


def install(python: Python, choice: PackageChoice) -> str:
    """Install exact versions; of a version such as 0.10.2.* the newest post-release."""
    words = [f"{name}=={version}" for name, version in choice.packages.items()]
    return _into(python, "install", *index_options(choice), *words)


def index_options(choice: PackageChoice) -> tuple[str, ...]:
    """Return pip's options for the index of the packages."""
    return ("--extra-index-url", choice.index) if choice.index else ()


def uninstall(python: Python, *names: str) -> str:
    """Take packages out."""
    asked = ("-y",) if python.pip else ()  # uv does not ask
    return pip(python, "uninstall", *asked, *names)


def install_rocm(python: Python, major: int, targets: Sequence[str], index: str) -> str:
    """Install ROCm's wheels beside jax; device code comes by extras."""
    extras = ",".join(["libraries", *(f"device-{target}" for target in targets)])
    return _into(python, "install", "--index-url", index, f"rocm[{extras}]=={major}.*")


def _into(python: Python, *words: str) -> str:
    if not python.managed or python.virtual:
        return pip(python, *words)
    # pip refuses to touch the Python of the operating system (PEP 668).
    return f"{_typed(python)} -m venv {FRESH} && {FRESH}/bin/python -m pip {join(words)}"
