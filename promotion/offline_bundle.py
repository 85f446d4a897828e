"""A set and its dependencies for machines without a network, as an archive.

- `set/`: the set without its wheels: wheels.json, the lock file, signed evidence
- `wheels/`: the wheels of the set and of its dependencies
- `requirements-<python>.txt`: the wheels for one Python, with hashes
- `README.txt`: the commands that install the set

For the device gate, a folder for one Python, with further files:

- `set/`: also the wheels of the set, so that the folder is a set
- `wheels/`: also the packages of this program and of the tests
- `gate/*.lock`: the lock files of these packages, which pip verifies
- `gate/jax.git`: the commit of JAX's suite
- `program/`: this program
"""

from __future__ import annotations

import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename

from core.digests import sha256_of
from core.errors import RequestError
from core.frozen import frozen
from core.model import PYLOCK, Progress, WheelSet
from core.own_files import NOT_RUN, PACKAGES, ROOT
from core.process import Runner
from core.wheelset import read_unchanged
from promotion.gates.common.installers import LOCKED, Command, download
from promotion.gates.common.set_requirements import locked, wheels_for, write_lines
from promotion.gates.device.suite import SuiteSource, fetch_suite
from promotion.stage import fetch_set
from promotion.storage.bucket import Bucket, fetch_to
from promotion.storage.object_keys import EVIDENCE_FOLDER, ReleasedIndex, StagedSet

SUITE = "gate/jax.git"
_LOCKS = (
    ROOT / "build" / "requirements.lock",
    ROOT / "build" / "requirements-gate.lock",
)
"""Packages of this program, with uv and pip, and packages that run the tests."""
_ALSO = "also.lock"
"""Name of the user's lock file in the bundle; it differs from the names of this program's."""
_SECONDS = 1800.0
_README = """\
{name}: jax {jax} for ROCm {rocm}, {targets}

Copy this folder to the machine. In the folder, run the command for the Python of the
machine ({pythons}):

{lines}

pip verifies every file by its sha256 and uses no network. set/ describes the wheels,
their origin and their tests (set/evidence). ROCm {rocm} is not in this folder: install
it first.
"""
_INSTALL = (
    "    python{python} -m pip install --no-index --find-links wheels"
    " --require-hashes --requirement requirements-{python}.txt"
)
_GATE_README = """
Tests without a network
-----------------------

This folder has all that the gate device needs besides Python {python}. Run with this folder as DIR:

    mkdir -p DIR/bucket
    python{python} DIR/program/build/ci_build gate device DIR/set \\
        --wheelhouse DIR --bucket DIR/bucket {options}

Evidence and results go into DIR/bucket.
"""


@frozen
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


def bundle(
    bucket: Bucket,
    source: StagedSet | Path,
    out: Path,
    runner: Runner,
    progress: Progress,
    gate: GateBundle | None = None,
) -> Path:
    """Write the archive of a set; equal sets and evidence give equal bytes.

    Args:
        source: a staged or released set, or the folder of a set.
        out: path of the archive, a plain tar because wheels are compressed, or of the
            folder if it is for the gate. It appears when it is complete.
        runner: runner of pip, which downloads the dependencies from the user's package
            index: the pinned ones, or the newest if the set has no lock file.

    Raises:
        BucketError: the bucket does not have the set, or a file differs from
            wheels.json.
        WheelSetError: a file in the folder differs from wheels.json.
        RequestError: the set does not support the Python of the gate, or options of the
            gate contradict each other.
    """
    with tempfile.TemporaryDirectory(
        prefix=".bundle-", dir=out.absolute().parent
    ) as work:
        root = Path(work) / out.name.removesuffix(".tar")
        progress.step("collect the files of the set")
        wheel_set = _collect(bucket, source, root / "set")
        pythons = wheel_set.python_versions
        if gate is not None:
            _check_gate(gate, wheel_set)
            pythons = (gate.python,)
        (root / "wheels").mkdir()
        for wheel in wheel_set.wheels:
            path = root / "set" / wheel.filename
            (root / "wheels" / wheel.filename).hardlink_to(path)
            if gate is None:  # an archive has each wheel once
                path.unlink()
        for python in pythons:
            progress.step(f"fetch the dependencies for Python {python}")
            _fetch_dependencies(wheel_set, python, root, runner)
        lines = [_INSTALL.format(python=python) for python in pythons]
        readme = _README.format(
            name=root.name,
            jax=wheel_set.jax_version,
            rocm=wheel_set.rocm_version,
            targets=", ".join(wheel_set.targets),
            pythons=", ".join(pythons),
            lines="\n".join(lines),
        )
        if gate is not None:
            progress.step("fetch what the gate device needs")
            readme += _add_gate(root, gate, runner)
        (root / "README.txt").write_text(readme)
        progress.step(f"write {out}")
        if gate is not None:
            root.rename(out)
            return out
        part = Path(work) / "bundle.part"
        _tar(root, part)
        part.replace(out)
    return out


def _collect(bucket: Bucket, source: StagedSet | Path, folder: Path) -> WheelSet:
    """Copy a set into a new folder, with the evidence that the bucket has."""
    if isinstance(source, Path):
        shutil.copytree(source, folder)
        wheel_set = read_unchanged(folder)
        staged = StagedSet(index=wheel_set.index, digest=wheel_set.digest)
    else:
        folder.mkdir(parents=True)
        wheel_set = fetch_set(bucket, source, folder)
        staged = source
    released = ReleasedIndex(index=staged.index)
    for root in (staged.root, released.set_file(staged.digest, "")):
        for key in bucket.list(f"{root}{EVIDENCE_FOLDER}/"):
            fetch_to(bucket, key, folder / key.removeprefix(root))
    return wheel_set


def _fetch_dependencies(
    wheel_set: WheelSet, python: str, root: Path, runner: Runner
) -> None:
    """Download the dependencies for one Python, and write its requirements file."""
    own = {wheel.name for wheel in wheel_set.wheels}
    mine = wheels_for(wheel_set, python)
    if PYLOCK in wheel_set.files:
        lines = locked((root / "set" / PYLOCK).read_text(), python, own)
        _download(lines, python, root, runner)
    else:
        newest = root / "newest"
        wanted = [f"{name}=={pin}" for name, pin in wheel_set.pins.items()]
        wanted += [f"{wheel.name}=={wheel.version}" for wheel in mine]
        links = f"--find-links={root / 'wheels'}"
        jax = f"jax=={wheel_set.jax_version}"
        _run(runner, download(python, newest, links, jax, *wanted))
        lines = []
        for path in newest.iterdir():
            name, version, _, _ = parse_wheel_filename(path.name)
            if name not in own:
                lines.append(f"{name}=={version} --hash=sha256:{sha256_of(path)}")
                path.rename(root / "wheels" / path.name)
        shutil.rmtree(newest)
    for wheel in mine:
        lines.append(f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}")
    write_lines(root / f"requirements-{python}.txt", sorted(lines))


def _download(lines: list[str], python: str, root: Path, runner: Runner) -> None:
    """Download hash-locked requirements."""
    needed = write_lines(root / "needed.txt", lines)
    what = (*LOCKED, f"--requirement={needed}")
    _run(runner, download(python, root / "wheels", *what))
    needed.unlink()


def _run(runner: Runner, command: Command) -> None:
    runner.run(command.argv, env=command.env, timeout=_SECONDS)


def _tar(root: Path, path: Path) -> None:
    """Write the files of a folder to a tar archive, in sorted order, without owners and times."""
    with tarfile.open(path, "x", format=tarfile.PAX_FORMAT) as archive:
        for file in sorted(item for item in root.rglob("*") if item.is_file()):
            info = tarfile.TarInfo(f"{root.name}/{file.relative_to(root).as_posix()}")
            info.size = file.stat().st_size
            info.mode = 0o644
            with file.open("rb") as data:
                archive.addfile(info, data)
    with path.open("rb") as written:
        os.fsync(written.fileno())


def _check_gate(request: GateBundle, wheel_set: WheelSet) -> None:
    """Raise RequestError if a set or a request does not fit."""
    if request.python not in wheel_set.python_versions:
        raise RequestError(
            f"The set does not support Python {request.python}.",
            hint=f"Give one of {', '.join(wheel_set.python_versions)}.",
        )
    if request.suite is not None and not request.suite.commit:
        raise RequestError(
            "--jax-tests has no commit.",
            hint="Write it like URL@COMMIT or PATH@COMMIT.",
        )
    needs_also = request.platform == "cuda"
    if (request.also is not None) != needs_also:
        verb = "needs" if needs_also else "does not use"
        raise RequestError(
            f"--platform {request.platform} {verb} --also.",
            hint="Give the lock file of NVIDIA's packages for --platform cuda only.",
        )


def _add_gate(root: Path, request: GateBundle, runner: Runner) -> str:
    """Add this program and the tools and tests of the gate to the folder of a bundle.

    Return the text for its README.

    Raises:
        InputError: the suite cannot be fetched.
        ProcessError: a package cannot be downloaded.
    """
    folder = root / "gate"
    folder.mkdir()
    locks = {lock.name: lock for lock in _LOCKS}
    if request.also is not None:
        locks[_ALSO] = request.also
    for name, lock in locks.items():
        shutil.copyfile(lock, folder / name)
        lines = list(_applicable(lock, request.python))
        _download(lines, request.python, root, runner)
    for name in ("build", *PACKAGES):
        shutil.copytree(
            ROOT / name,
            root / "program" / name,
            ignore=shutil.ignore_patterns(*NOT_RUN),
        )
    shutil.copyfile(ROOT / "pyproject.toml", root / "program" / "pyproject.toml")
    options = [f"--platform {request.platform}", f"--python {request.python}"]
    if request.platform == "rocm":
        options.append("--family FAMILY")
    if request.also is not None:
        options.append(f"--also DIR/gate/{_ALSO}")
    if request.suite is not None:
        fetch_suite(request.suite, root / SUITE, runner, bare=True)
        shutil.rmtree(root / SUITE / "hooks", ignore_errors=True)
        suite = f"file://$(realpath DIR)/{SUITE}@{request.suite.commit}"
        options.append(f"--jax-tests {suite}")
    return _GATE_README.format(python=request.python, options=" ".join(options))


def _applicable(lock: Path, python: str) -> Iterator[str]:
    """Yield the requirements of a lock file for Linux and one Python, without markers.

    `pip download` evaluates markers for the Python that runs it.
    """
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    text = re.sub(r"\\\n\s*", " ", lock.read_text(encoding="utf-8"))
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        text, *hashes = re.split(r"\s+--hash=", line.strip())
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate(environment):
            requirement.marker = None
            yield " --hash=".join((str(requirement), *hashes))
