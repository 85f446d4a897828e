"""The folder with which a machine without a network runs the gate device.

A bundle with further files.

- `wheels/`: also the packages of this program and of the tests, for one Python
- `gate/*.lock`: the lock files of these packages, which pip verifies
- `gate/jax.git`: the commit of JAX's suite
- `program/`: this program
- `set/`: also the wheels of the set, so that the folder is a set
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from core.errors import InputError, ProcessError, RequestError
from core.model import WheelSet
from core.own_files import NOT_RUN, PACKAGES, ROOT
from core.process import Runner
from promotion.gates.common.installers import Command, download
from promotion.gates.common.set_requirements import write_lines
from promotion.gates.common.uv_installer import configured_uv
from promotion.gates.device.suite import SuiteSource

FOLDER = "gate"
SUITE = "gate/jax.git"
PROGRAM = "program"
_LOCKS = (
    ROOT / "build" / "requirements.lock",
    ROOT / "build" / "requirements-gate.lock",
)
"""Packages of this program, with uv and pip, and packages that run the tests."""
_ALSO = "also.lock"
"""Name of the user's lock file in the bundle; it differs from the names of this program's."""
_SECONDS = 1800.0
_README = """
Tests without a network
-----------------------

This folder has all that the gate device needs besides Python {python}. Run with this folder as DIR:

    python{python} DIR/program/build/ci_build gate device DIR/set \\
        --wheelhouse DIR {options}

Evidence and results go into the bucket that --bucket names.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class GateBundle:
    """A request to add the tools and tests of the gate device.

    Attributes:
        platform: platform of the tests: rocm, cpu or cuda.
        python: Python version such as 3.12.
        suite: JAX's suite with its commit; None for the smoke suite, which is part of
            this program.
        also: hash-locked requirements to install with the set, such as NVIDIA's plugin.
    """

    platform: str
    python: str
    suite: SuiteSource | None = None
    also: Path | None = None


def check_gate_bundle(request: GateBundle, wheel_set: WheelSet) -> None:
    """Raise RequestError if a set or a request does not fit."""
    if request.python not in wheel_set.python_versions:
        hint = f"Give one of {', '.join(wheel_set.python_versions)}."
        raise RequestError(
            f"The set does not support Python {request.python}.", hint=hint
        )
    if request.suite is not None and not request.suite.commit:
        raise RequestError(
            "--jax-tests has no commit.",
            hint="Write it like URL@COMMIT or PATH@COMMIT.",
        )
    if (request.also is not None) != (request.platform == "cuda"):
        raise RequestError(
            f"--platform {request.platform}"
            f" {'needs' if request.platform == 'cuda' else 'does not use'} --also.",
            hint="Give the lock file of NVIDIA's packages for --platform cuda only.",
        )


def add_gate(
    root: Path, request: GateBundle, wheel_set: WheelSet, runner: Runner
) -> str:
    """Add this program and the tools and tests of the gate to the folder of a bundle.

    Return the text for its README.

    Raises:
        InputError: the suite cannot be fetched.
        ProcessError: a package cannot be downloaded.
    """
    (root / FOLDER).mkdir()
    locks = {lock.name: lock for lock in _LOCKS} | (
        {_ALSO: request.also} if request.also else {}
    )
    for name, lock in locks.items():
        (root / FOLDER / name).write_bytes(lock.read_bytes())
        needed = write_lines(root / "needed.txt", _applicable(lock, request.python))
        _run(
            runner,
            download(Path(sys.executable), request.python, needed, root / "wheels"),
        )
        needed.unlink()
    for name in ("build", *PACKAGES):
        shutil.copytree(
            ROOT / name, root / PROGRAM / name, ignore=shutil.ignore_patterns(*NOT_RUN)
        )
    for wheel in wheel_set.wheels:
        (root / "set" / wheel.filename).hardlink_to(root / "wheels" / wheel.filename)
    options = [f"--platform {request.platform}", f"--python {request.python}"]
    options += ["--family FAMILY"] if request.platform == "rocm" else []
    options += [f"--also DIR/{FOLDER}/{_ALSO}"] if request.also else []
    if request.suite is not None:
        _fetch_suite(request.suite, root / SUITE, runner)
        options.append(
            f"--jax-tests file://$(realpath DIR)/{SUITE}@{request.suite.commit}"
        )
    return _README.format(python=request.python, options=" ".join(options))


def resolved_pins(
    wheel_set: WheelSet, version: str, work: Path, runner: Runner
) -> list[str]:
    """Return hash-locked requirements of a set without a lock file, from the user's index.

    Args:
        work: folder with the wheels of the set in `wheels`.
    """
    uv = configured_uv(runner)
    own = {wheel.name for wheel in wheel_set.wheels}
    pins = {"jax": wheel_set.jax_version} | dict(wheel_set.pins)
    needed = write_lines(
        work / "needed.txt",
        (f"{name}=={pin}" for name, pin in pins.items() if name not in own),
    )
    overrides = write_lines(
        work / "overrides.txt",
        (f"{wheel.name}=={wheel.version}" for wheel in wheel_set.wheels),
    )
    try:
        done = _run(runner, uv.lock_for(version, needed, overrides, work / "wheels"))
    finally:
        needed.unlink()
        overrides.unlink()
    return [
        line
        for line in _requirements(done)
        if re.split("[=<>~]", line, maxsplit=1)[0] not in own
    ]


def _run(runner: Runner, command: Command) -> str:
    return runner.run(command.argv, env=command.env, timeout=_SECONDS).stdout


def _requirements(text: str) -> Iterator[str]:
    """Yield the requirements of a file, each with its hashes in one line and without comments."""
    joined = re.sub(r"\\\n\s*", " ", text)
    yield from (
        line.strip()
        for line in joined.splitlines()
        if line.strip() and not line.lstrip().startswith("#")
    )


def _applicable(lock: Path, python: str) -> Iterator[str]:
    """Yield the requirements of a lock file for Linux and one Python, without markers.

    `pip download` evaluates markers for the Python that runs it.
    """
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    for line in _requirements(lock.read_text(encoding="utf-8")):
        text, *hashes = re.split(r"\s+--hash=", line)
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate(environment):
            requirement.marker = None
            yield " --hash=".join((str(requirement), *hashes))


def _fetch_suite(suite: SuiteSource, folder: Path, runner: Runner) -> None:
    """Fetch one commit into a bare repository, from which the gate fetches it again."""
    location = suite.location if suite.remote else str(Path(suite.location).absolute())
    commands: Sequence[tuple[str, ...]] = (
        ("init", "--quiet", "--bare", str(folder)),
        (
            "-C",
            str(folder),
            "fetch",
            "--quiet",
            "--depth=1",
            "--no-tags",
            "--",
            location,
            suite.commit,
        ),
        ("-C", str(folder), "update-ref", "refs/heads/suite", suite.commit),
        ("-C", str(folder), "symbolic-ref", "HEAD", "refs/heads/suite"),
    )
    try:
        for words in commands:
            runner.run(("git", *words), timeout=_SECONDS)
    except ProcessError as problem:
        raise InputError(
            f"Cannot fetch {location}: {problem.message}", hint="Check the commit."
        ) from problem
    shutil.rmtree(folder / "hooks", ignore_errors=True)
