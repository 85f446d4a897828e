"""Commands on the page of an index that install a set."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from core.frozen import frozen
from core.model import PYLOCK
from core.versions import module_name, parse_package_name
from promotion.index.json_types import SetRow
from promotion.index.rocm_packages import with_extra
from promotion.index.set_summary import LOCKED, REQUIREMENTS
from promotion.storage.object_keys import SETS_FOLDER

_DOCKER_PYTHON = "3.12"
"""Python of Ubuntu 24.04, the system of AMD's images."""
_RELEASE = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_FOLDER = "jax-wheels"


@frozen
class Here:
    """A word of a command that contains a still unknown URL of the index."""

    path: str


@frozen
class InstallCommand:
    """A command that installs a set.

    Attributes:
        words: words of the command. Empty if there is none; then `note` has the reason.
    """

    name: str
    words: tuple[str | Here, ...]
    note: str = ""


_SOURCE = ("--extra-index-url", Here(path="simple/"))


def gpu_extras(row: SetRow, gpus: Sequence[str]) -> tuple[str, ...]:
    """Return the extras of a set that install the ROCm for some GPUs."""
    extras = [f"device-{gpu}" for gpu in gpus]
    return tuple(extra for extra in extras if extra in row["extras"])


def install_commands(row: SetRow, gpus: Sequence[str]) -> Iterator[InstallCommand]:
    """Yield the commands that install a set, with its ROCm if that has wheels.

    The first three are pip, uv and the check of the machine.

    Args:
        row: the set in status.json; see `status.set_row`.
        gpus: GPUs that run the code of a target of the set.
    """
    # Users paste commands into a shell, so a name or version must not be more than one
    # word of it.
    extra = next(iter(gpu_extras(row, gpus)), "")
    requirements = row["install"].split()
    plain = tuple(map(shlex.quote, requirements))
    needs = tuple(map(shlex.quote, with_extra(requirements, extra)))
    source: tuple[str | Here, ...] = _SOURCE
    best: tuple[str, ...] = ()
    if extra and row["rocm_index"]:
        source = (*source, "--extra-index-url", shlex.quote(row["rocm_index"]))
        # Otherwise uv searches a project only in the first index that has it.
        best = ("--index-strategy", "unsafe-best-match")
    optional = shlex.join(row["optional"].split())
    note = f"To install AITER’s kernels too, append {optional}." if optional else ""
    yield InstallCommand(name="pip", words=("pip", "install", *source, *needs))
    uv = ("uv", "pip", "install", *best, *source, *needs)
    yield InstallCommand(name="uv", words=uv, note=note)
    yield _check(requirements)
    of_rocm = f"{REQUIREMENTS}{extra}.txt"
    if of_rocm in row["files"]:
        yield from _locked(row, needs, of_rocm)
    else:
        yield from _locked(row, plain)
    yield _docker(row, plain)


def _check(requirements: Sequence[str]) -> InstallCommand:
    """Return the command of the diagnosis, which is part of the pjrt wheel."""
    names = [parse_package_name(text.partition("==")[0]) for text in requirements]
    majors = [name[1] for name in names if name]
    words = ("python", "-m", module_name("pjrt", majors[0])) if majors else ()
    return InstallCommand(name="Check your machine", words=words)


def _locked(
    row: SetRow, needs: Sequence[str], of_rocm: str = ""
) -> Iterator[InstallCommand]:
    """Yield the commands that accept no other bytes than those of the set.

    Args:
        needs: requirements that install the downloaded files.
        of_rocm: file beside the set with the hashes of its ROCm; empty without one.
    """
    if LOCKED not in row["files"]:
        note = (
            f"This set has no {PYLOCK}, so there are no hashes to lock to, and no list"
            " of files to download."
        )
        yield InstallCommand(name="pip, hash-locked, and offline", words=(), note=note)
        return
    lock: list[str | Here] = ["--require-hashes", "--no-deps", *_SOURCE]
    for name in (LOCKED, of_rocm):
        if name:
            lock += ["-r", Here(path=f"{SETS_FOLDER}/{row['digest']}/{name}")]
    note = "pip accepts only the bytes of this set."
    yield InstallCommand(
        name="pip, hash-locked",
        words=("pip", "install", *lock),
        note=note if of_rocm else f"{note} ROCm is not included.",
    )
    note = (
        "With a network, and the Python of the machine without one. Copy the folder"
        f" {_FOLDER} to that machine."
    )
    yield InstallCommand(
        name="Offline: download",
        words=("pip", "download", "--dest", _FOLDER, *lock),
        note=note,
    )
    words = ("pip", "install", "--no-index", "--find-links", _FOLDER, *needs)
    note = f"On that machine, in the parent of {_FOLDER}."
    yield InstallCommand(name="Offline: install", words=words, note=note)


def _docker(row: SetRow, needs: Sequence[str]) -> InstallCommand:
    tag = amd_image_tag(row["rocm"])
    if (
        not tag
        or _DOCKER_PYTHON not in row["pythons"]
        or any("'" in word for word in needs)
    ):
        note = (
            "AMD has no image with this ROCm and Python. Install into your own image"
            " with ROCm."
        )
        return InstallCommand(name="Docker", words=(), note=note)
    return InstallCommand(
        name="Docker",
        words=(
            "docker",
            "run",
            "--rm",
            "-it",
            "--device=/dev/kfd",
            "--device=/dev/dri",
            f"docker.io/rocm/dev-ubuntu-24.04:{tag}",
            "sh",
            "-c",
            (
                "'apt-get update && apt-get install -y python3-venv && python3 -m venv"
                " /jax &&"
            ),
            "/jax/bin/pip install",
            *_SOURCE,
            *needs,
            "&&",
            '/jax/bin/python -c "import jax; print(jax.devices())"\'',
        ),
        note=(
            f"AMD’s image with ROCm {row['rocm']} and Python {_DOCKER_PYTHON}; the last"
            " words print the GPUs."
        ),
    )


def amd_image_tag(rocm: str) -> str:
    """Return the tag of rocm/dev-ubuntu-24.04 with all of a ROCm; empty without one.

    Tags are 7.2-complete and 7.2.1-complete up to ROCm 7.2, 7.14.0-full and 10.0.0-full
    later. The previews 7.9 to 7.13 have no image.
    """
    release = _RELEASE.fullmatch(rocm)
    if release is None:
        return ""
    major, minor, patch = map(int, release.groups())
    if (major, minor) < (7, 9):
        return f"{major}.{minor}{f'.{patch}' if patch else ''}-complete"
    return f"{rocm}-full" if (major, minor) >= (7, 14) else ""
