"""One archive with a set and its dependencies, for machines without a network.

For the gate device, one folder.

- `wheels/`: the unchanged wheels of the set, and the wheels that its lock file pins
- `simple/`: an index of all these wheels (PEP 503)
- `requirements-<python>.txt`: the wheels for one Python, with hashes
- `set/`: wheels.json, SHA256SUMS, the lock file, evidence and its signatures, unchanged
  from the bucket
- `README.txt`: the commands that install the set
"""

from __future__ import annotations

import email.parser
import functools
import os
import re
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from packaging.utils import parse_wheel_filename

from core.errors import BucketError, WheelSetError
from core.model import PYLOCK, WHEELS_JSON, Progress, WheelSet
from core.process import Runner
from core.wheels_json import load_wheel_set
from promotion.bundle_gate import GateBundle, add_gate, check_gate_bundle, resolved_pins
from promotion.gates.common.installers import download
from promotion.gates.common.set_requirements import locked, wheels_for
from promotion.index.core_metadata import core_metadata
from promotion.index.index_reader import IndexedWheel
from promotion.index.ledger_wheel import LedgerWheel
from promotion.index.pages import pages
from promotion.stage import find_staged, stage
from promotion.storage.bucket import Bucket, fetch_to, sha256_of
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import METADATA_SUFFIX, ReleasedIndex, StagedSet

_SECONDS = 1800.0
_README = """\
{name}: {what}

Copy this folder to the machine. In the folder, run the command for the Python of the
machine ({pythons}):

{lines}

pip verifies every file by its sha256 and uses no network. set/ describes the wheels,
their origin and their tests (set/evidence).
"""


def bundle(
    bucket: Bucket,
    staged: StagedSet,
    out: Path,
    runner: Runner,
    progress: Progress,
    gate: GateBundle | None = None,
) -> Path:
    """Write the archive of a staged or released set; equal sets and evidence give equal bytes.

    Args:
        out: path of the archive, a plain tar because wheels are compressed, or of the
            folder if it is for the gate. It appears when it is complete.
        runner: runner of pip, which downloads the pinned wheels from the user's package
            index.
        gate: what to add for the gate device; None adds nothing. The result is then a
            folder for one Python, and a set without lock file gets the newest
            compatible versions.

    Raises:
        BucketError: the bucket does not have the set, or a wheel differs from
            wheels.json.
        WheelSetError: the set has no lock file.
        RequestError: the set does not support the Python of the gate, or options of the
            gate contradict each other.
    """
    wheel_set, wheels, files = _find(bucket, staged)
    if gate is not None:
        check_gate_bundle(gate, wheel_set)
    elif PYLOCK not in wheel_set.files:
        raise WheelSetError(
            f"Set {staged} has no lock file: {PYLOCK}.",
            hint="Build the set again with `ci_build dist_wheels`.",
        )
    name = f"{staged.index}-{staged.digest[:12]}"
    with tempfile.TemporaryDirectory(
        prefix=".bundle-", dir=out.absolute().parent
    ) as work:
        root = Path(work) / name
        (root / "wheels").mkdir(parents=True)
        progress.step(f"collect {len(wheels)} wheels of {staged}")
        for filename, key in wheels.items():
            fetch_to(bucket, key, root / "wheels" / filename)
        for wheel in wheel_set.wheels:
            if (actual := sha256_of(root / "wheels" / wheel.filename)) != wheel.sha256:
                raise BucketError(
                    f"{wheels[wheel.filename]} has sha256 {actual}, not {wheel.sha256}."
                )
        for file, key in files.items():
            fetch_to(bucket, key, root / "set" / file)
        _refuse_changes(wheel_set, root / "set", staged)
        lock = bucket.get(files[PYLOCK]).decode() if PYLOCK in wheel_set.files else ""
        pythons = (gate.python,) if gate else tuple(wheel_set.python_versions)
        for version in pythons:
            progress.step(f"fetch the pinned wheels for Python {version}")
            _fetch_pins(wheel_set, lock, version, root, runner)
        readme = _readme(name, wheel_set, pythons)
        if gate is not None:
            progress.step("fetch what the gate device needs")
            readme += add_gate(root, gate, wheel_set, runner)
        for page in pages("simple/", _offers(root / "wheels")):
            (root / page.key).parent.mkdir(parents=True, exist_ok=True)
            (root / page.key).write_bytes(page.data)
        (root / "README.txt").write_text(readme)
        progress.step(f"write {out}")
        if gate is not None:
            root.rename(out)
            return out
        part = Path(work) / "bundle.tar"
        _tar(root, part)
        part.replace(out)
    return out


def is_bundle(path: Path) -> bool:
    """Return whether a file is an archive that `set bundle` wrote; its first file is README.txt."""
    if not path.is_file():
        return False
    try:
        with tarfile.open(path, "r:") as archive:
            first = archive.next()
    except (OSError, tarfile.TarError):
        return False
    return (
        first is not None
        and re.fullmatch(r"[^/]+-[0-9a-f]{12}/README\.txt", first.name) is not None
    )


@contextmanager
def staged_for_bundle(
    bucket: Bucket, folder: Path, beside: Path, progress: Progress
) -> Iterator[tuple[Bucket, StagedSet]]:
    """Provide the set in a folder as a staged set, for the duration of the block.

    A set that is not staged yet is staged in a temporary bucket, so that the bundle
    leaves nothing but the archive.

    Args:
        beside: folder of the archive, in which the temporary bucket is created.

    Yields:
        The bucket, and the set in it.
    """
    if staged := find_staged(bucket, folder):
        yield bucket, staged
        return
    with tempfile.TemporaryDirectory(prefix=".bundle-", dir=beside) as work:
        temporary = DirBucket(Path(work))
        yield temporary, stage(temporary, folder, progress=progress)


def _find(
    bucket: Bucket, staged: StagedSet
) -> tuple[WheelSet, Mapping[str, str], Mapping[str, str]]:
    """Return a set, the keys of its wheels, and the keys of its other files, by name."""
    released = ReleasedIndex(index=staged.index)
    in_set: Callable[[str], str] = staged.file
    folder = staged.root
    if bucket.head(staged.file(WHEELS_JSON)) is None:
        folder = released.set_file(staged.digest, "")
        in_set = functools.partial(released.set_file, staged.digest)
    if bucket.head(in_set(WHEELS_JSON)) is None:
        raise BucketError(
            f"The bucket has no set {staged}.",
            hint="Give INDEX/DIGEST as `ci_build set stage` prints it.",
        )
    wheel_set = load_wheel_set(bucket.get(in_set(WHEELS_JSON)))
    names = {wheel.filename for wheel in wheel_set.wheels}
    wheels = {
        wheel.filename: (
            released.wheel(wheel.name, wheel.filename)
            if folder != staged.root
            else in_set(wheel.filename)
        )
        for wheel in wheel_set.wheels
    }
    files = {key.removeprefix(folder): key for key in bucket.list(folder)}
    others = {
        name: key
        for name, key in files.items()
        if name not in names
        and name.removesuffix(METADATA_SUFFIX) not in names
        and not name.startswith("simple/")
    }
    return wheel_set, wheels, others


def _refuse_changes(wheel_set: WheelSet, folder: Path, staged: StagedSet) -> None:
    """Raise BucketError if a file beside the wheels differs from wheels.json."""
    for name, sha256 in wheel_set.files.items():
        if not (folder / name).is_file() or sha256_of(folder / name) != sha256:
            hint = "Stage the set again, or bundle an unchanged copy."
            raise BucketError(
                f"{name} of {staged} is missing or differs from {WHEELS_JSON}.",
                hint=hint,
            )


def _fetch_pins(
    wheel_set: WheelSet, lock: str, version: str, root: Path, runner: Runner
) -> None:
    """Download the wheels that the lock file pins for one Python, and write its requirements file.

    Args:
        lock: text of the set's lock file; empty resolves jax and its dependencies.
    """
    own = {wheel.name for wheel in wheel_set.wheels}
    lines = (
        locked(lock, version, own)
        if lock
        else resolved_pins(wheel_set, version, root, runner)
    )
    mine = wheels_for(wheel_set, version)
    requirements = root / f"requirements-{version}.txt"
    requirements.write_text("".join(f"{line}\n" for line in lines))
    command = download(Path(sys.executable), version, requirements, root / "wheels")
    runner.run(command.argv, env=command.env, timeout=_SECONDS)
    lines += [
        f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}" for wheel in mine
    ]
    requirements.write_text("".join(f"{line}\n" for line in sorted(lines)))


def _offers(wheels: Path) -> Iterator[IndexedWheel]:
    """Yield an index row for each wheel of a folder, and write its core metadata beside it."""
    for path in sorted(wheels.glob("*.whl")):
        with path.open("rb") as file:
            metadata = core_metadata(file, path.name)
        fields = email.parser.BytesParser().parsebytes(metadata, headersonly=True)
        project, version, _, _ = parse_wheel_filename(path.name)
        path.with_name(path.name + METADATA_SUFFIX).write_bytes(metadata)
        yield IndexedWheel(
            wheel=LedgerWheel(
                project=project,
                filename=path.name,
                version=str(version),
                size=path.stat().st_size,
                sha256=sha256_of(path),
                metadata_sha256=sha256_of(metadata),
                requires_python=fields.get("Requires-Python", ""),
                requires_dist=tuple(fields.get_all("Requires-Dist", ())),
            ),
            href=f"../../wheels/{path.name.replace('+', '%2B')}",
        )


def _readme(name: str, wheel_set: WheelSet, versions: Sequence[str]) -> str:
    lines = "\n".join(
        f"    python{version} -m pip install --no-index --find-links wheels"
        f" --require-hashes --requirement requirements-{version}.txt"
        for version in versions
    )
    what = (
        f"jax {wheel_set.jax_version} for ROCm {wheel_set.rocm_version},"
        f" {', '.join(wheel_set.targets)}"
    )
    return _README.format(
        name=name, what=what, pythons=", ".join(versions), lines=lines
    )


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
