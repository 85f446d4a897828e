"""Commands that fix problems, in the form in which users type them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from ci_build.doctor.choice import BEST_PYTHON, PackageChoice
from ci_build.doctor.examined import Python, versions
from ci_build.doctor.packages import Package

FRESH = "~/jax-rocm"
"""Proposed virtual environment if packages cannot be installed into the examined Python."""


def pip(python: Python, *words: str) -> str:
    """Return a pip command for this Python."""
    if python.pip:
        return f"{_typed(python)} -m pip {join(words)}"
    return f"uv pip {words[0]} --python {_typed(python)} {join(words[1:])}"


def _typed(python: Python) -> str:
    # A shell does not expand a quoted tilde.
    return (
        python.executable
        if python.executable.startswith("~/")
        else shlex.quote(python.executable)
    )


def join(words: Sequence[str]) -> str:
    """Return a command line of quoted words."""
    return " ".join(map(shlex.quote, words))


def another_python(python: Python) -> tuple[str, Python]:
    """Return the uv command for an environment with a supported Python, and the Python."""
    executable = f"{FRESH}/bin/python"
    environment = replace(
        python,
        version=BEST_PYTHON,
        implementation="CPython",
        free_threaded=False,
        executable=executable,
    )
    return f"uv venv --seed --python {BEST_PYTHON} {FRESH}", replace(
        environment, virtual=True, managed=False, pip=True
    )


def install(
    python: Python,
    choice: PackageChoice,
    have: Mapping[str, Package] = MappingProxyType({}),
) -> str:
    """Return the command that installs the chosen packages.

    Args:
        have: installed packages that stay; as in the advice of an installed loader,
            those that fit are not named.
    """
    stay = (
        {}
        if _is_closed(python)
        else {name: package.version for name, package in have.items()}
    )
    if choice.own:
        return _into(python, "install", *versions.install_words(choice.packages, stay))
    words = [f"{name}{specifier}" for name, specifier in choice.packages.items()]
    return _into(python, "install", *_index(choice), *words)


def install_again(python: Python, choice: PackageChoice, package: Package) -> str:
    """Return the command that replaces the files of an installed package."""
    words = versions.install_words({package.name: f"=={package.version}"}, {})
    words = (*_index(choice), words[-1]) if choice.index else words
    return pip(python, "install", "--force-reinstall", "--no-deps", *words)


def _index(choice: PackageChoice) -> tuple[str, ...]:
    return ("--extra-index-url", choice.index) if choice.index else ()


def uninstall(python: Python, *names: str) -> str:
    """Return the command that uninstalls packages."""
    confirmation = ("-y",) if python.pip else ()  # uv does not ask for confirmation
    return pip(python, "uninstall", *confirmation, *names)


def install_rocm(python: Python, major: int, targets: Sequence[str], index: str) -> str:
    """Return the command that installs ROCm's wheels, with an extra per target."""
    extras = ",".join(["libraries", *(f"device-{target}" for target in targets)])
    return _into(python, "install", "--index-url", index, f"rocm[{extras}]=={major}.*")


def _is_closed(python: Python) -> bool:
    return python.managed and not python.virtual


def _into(python: Python, *words: str) -> str:
    if not _is_closed(python):
        return pip(python, *words)
    # pip refuses to modify the Python of the operating system (PEP 668).
    return (
        f"{_typed(python)} -m venv {FRESH} && {FRESH}/bin/python -m pip {join(words)}"
    )
