"""Staging.

Copy a set's folder to an immutable folder in the bucket, named after the set's digest.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from core.digests import sha256_of
from core.errors import BucketError, CiBuildError, WheelSetError
from core.model import SHA256SUMS, WHEELS_JSON, Progress, WheelSet
from core.report import NoProgress
from core.units import human
from core.wheels_json import load_wheel_set
from core.wheelset import file_problems, read_set, sizes_of
from promotion.index.core_metadata import core_metadata, disagreements
from promotion.index.ledger_wheel import IndexedWheel, LedgerWheel
from promotion.index.pages import link, metadata_name, pages
from promotion.index.rocm_packages import package_problems, rocm_row
from promotion.storage.bucket import (
    Bucket,
    ConflictError,
    Data,
    check_key,
    fetch_to,
    size_of,
)
from promotion.storage.concurrency import map_concurrently
from promotion.storage.object_keys import (
    EVIDENCE_FOLDER,
    PROVENANCE_SUFFIX,
    ReleasedIndex,
    StagedSet,
    page_keys,
)

_LAST = (SHA256SUMS, WHEELS_JSON)


def stage(
    bucket: Bucket, set_dir: Path, *, progress: Progress | None = None
) -> StagedSet:
    """Stage a set under its digest; staging it again changes nothing.

    Every file is compared with `wheels.json` and SHA256SUMS before the upload, and
    every stored object afterwards. `wheels.json` is stored after all other files, the
    set's own index last.

    Raises:
        WheelSetError: the folder differs from its wheels.json. The message lists all
            reasons.
        BucketError: a key exists with other bytes, or a stored object differs from the
            uploaded file.
    """
    wheel_set = read_set(set_dir)
    staged = StagedSet(index=wheel_set.index, digest=wheel_set.digest)
    report = progress or NoProgress()
    report.step(f"stage set {wheel_set.digest[:12]} for {wheel_set.index}")
    metadata = _metadata(set_dir, wheel_set)
    digests = {wheel.filename: wheel.sha256 for wheel in wheel_set.wheels}
    digests |= wheel_set.files
    files: dict[str, Data] = {**metadata}
    files |= {check_key(name): set_dir / name for name in digests}
    files |= {name: (set_dir / name).read_bytes() for name in _LAST}
    for name in (*metadata, *_LAST):
        digests[name] = sha256_of(files[name])
    sizes = {name: size_of(data) for name, data in files.items()}
    total = sum(sizes.values())
    done = 0
    lock = threading.Lock()

    def put(name: str) -> None:
        nonlocal done
        with report.task(f"{name}, {human(sizes[name])}", transient=True):
            bucket.put_if_absent(staged.file(name), files[name], sha256=digests[name])
        with lock:
            done += sizes[name]
            report.advance(done, total)

    first = [name for name in files if name not in _LAST]
    map_concurrently(put, first)
    for name in _LAST:
        put(name)
    raise_if_any(stored_problems(bucket, staged.file, digests), BucketError)
    rows = staged_wheels(staged, wheel_set, digests)
    for page in pages(staged.simple, rows):
        write_if_changed(bucket, page.key, page.data)
    return staged


def find_staged(bucket: Bucket, set_dir: Path) -> StagedSet | None:
    """Return the staged set of a folder, or None if staging was not completed.

    Bytes are not compared.
    """
    wheel_set = read_set(set_dir)
    staged = StagedSet(index=wheel_set.index, digest=wheel_set.digest)
    return (
        staged if all(bucket.head(page) for page in page_keys(staged.simple)) else None
    )


def read_staged(bucket: Bucket, staged: StagedSet) -> WheelSet:
    """Return a staged set; WheelSetError if its wheels.json belongs to another set."""
    key = staged.file(WHEELS_JSON)
    wheel_set = load_wheel_set(bucket.get(key), key)
    if (wheel_set.index, wheel_set.digest) != (staged.index, staged.digest):
        raise WheelSetError(
            f"{key} belongs to another set: {wheel_set.index}/{wheel_set.digest}.",
            hint="Stage the set again.",
        )
    return wheel_set


def fetch_set(bucket: Bucket, staged: StagedSet, folder: Path) -> WheelSet:
    """Download a staged or released set in the form that `set stage` accepts.

    Raises:
        BucketError: the bucket does not have the set, or a file differs from it.
    """
    wheel_set, keys = locate(bucket, staged)
    for name, key in keys.items():
        fetch_to(bucket, key, folder / name)
    wrong = file_problems(folder, wheel_set)
    if wrong or (wheel_set.index, wheel_set.digest) != (staged.index, staged.digest):
        raise BucketError(
            f"The set {staged} has other files: {', '.join(wrong) or WHEELS_JSON}.",
            hint=(
                f"Run `ci_build index verify {staged.index}` if it was released, else stage"
                " the set again."
            ),
        )
    return wheel_set


def locate(bucket: Bucket, staged: StagedSet) -> tuple[WheelSet, Mapping[str, str]]:
    """Return a staged or released set, and the key of each of its files by name."""
    released = ReleasedIndex(index=staged.index)
    key_of = staged.file
    in_staging = bucket.head(key_of(WHEELS_JSON)) is not None
    if not in_staging:
        key_of = functools.partial(released.set_file, staged.digest)
    if bucket.head(key_of(WHEELS_JSON)) is None:
        raise BucketError(
            f"The bucket has no set {staged}.",
            hint="Give INDEX/DIGEST as `ci_build set stage` prints it.",
        )
    wheel_set = load_wheel_set(bucket.get(key_of(WHEELS_JSON)), key_of(WHEELS_JSON))
    names = (WHEELS_JSON, SHA256SUMS, *wheel_set.files)
    keys = {name: key_of(name) for name in names}
    for wheel in wheel_set.wheels:
        name = wheel.filename
        there = staged.file(name) if in_staging else released.wheel(wheel.name, name)
        keys[name] = there
    return wheel_set, keys


def carry(
    source: Bucket, target: Bucket, staged: StagedSet, folder: Path, report: Progress
) -> None:
    """Stage a set of another bucket, with its evidence, logs and attestations.

    Signatures travel with the evidence, so that the policy of the target judges it.

    Args:
        folder: an empty folder for the files of the set.

    Raises:
        BucketError: the source does not have the set, or a file differs from it.
    """
    wheel_set = fetch_set(source, staged, folder)
    stage(target, folder, progress=report)
    _, keys = locate(source, staged)
    root = keys[WHEELS_JSON].removesuffix(WHEELS_JSON)
    files = {
        key.removeprefix(root): key for key in source.list(f"{root}{EVIDENCE_FOLDER}/")
    }
    for wheel in wheel_set.wheels:
        name = wheel.filename
        files[name + PROVENANCE_SUFFIX] = keys[name] + PROVENANCE_SUFFIX
    # A signature precedes its evidence, see `evidence.record`.
    for name in sorted(files, key=lambda name: (name.endswith(".json"), name)):
        if (stored := source.read(files[name])) is not None:
            data, info = stored
            target.put_if_absent(staged.file(name), data, sha256=info.sha256)


def stored_problems(
    bucket: Bucket,
    key_of: Callable[[str], str],
    files: Mapping[str, str],
    sizes: Mapping[str, int] | None = None,
) -> Iterator[str]:
    """Yield a sentence for each file that is missing from the bucket or has another sha256 or size.

    Args:
        key_of: name of a file -> its key.
        files: name -> expected sha256.
        sizes: name -> expected size in bytes; other files may have any size.
    """
    keys = [key_of(name) for name in files]
    sizes = sizes or {}
    for name, key, stored in zip(
        files, keys, map_concurrently(bucket.head, keys), strict=True
    ):
        if stored is None:
            yield f"{key} is not in the bucket."
        elif stored.sha256 != files[name]:
            yield f"{key} has sha256 {stored.sha256}; {files[name]} was expected."
        elif stored.size != sizes.get(name, stored.size):
            yield f"{key} has {stored.size} bytes; {WHEELS_JSON} records {sizes[name]}."


def refuse_changed_files(
    bucket: Bucket, staged: StagedSet, wheel_set: WheelSet
) -> None:
    """Raise BucketError if a staged file differs from the set's wheels.json."""
    wheels = {wheel.filename: wheel.sha256 for wheel in wheel_set.wheels}
    problems = stored_problems(
        bucket, staged.file, {**wheels, **wheel_set.files}, sizes_of(wheel_set)
    )
    raise_if_any(problems, BucketError, "Stage the set again.")


def staged_wheels(
    staged: StagedSet, wheel_set: WheelSet, digests: Mapping[str, str]
) -> Iterator[IndexedWheel]:
    """Yield the rows of the set's own index.

    Args:
        digests: sha256 of every file, also of the wheels' core metadata.
    """
    for wheel in wheel_set.wheels:
        metadata = digests[metadata_name(wheel.filename)]
        yield IndexedWheel(
            wheel=LedgerWheel.of(wheel, metadata_sha256=metadata),
            href=link(staged.simple, wheel.name, staged.file(wheel.filename)),
            set_digest=staged.digest,
        )
    for row in map(rocm_row, wheel_set.rocm_packages):
        yield dataclasses.replace(row, set_digest=staged.digest)


def write_if_changed(bucket: Bucket, key: str, data: bytes) -> None:
    """Write an object that is generated from other objects, such as a page.

    Raises:
        ConflictError: another process wrote other bytes meanwhile.
    """
    stored = bucket.read(key)
    if stored is not None and stored[0] == data:
        return
    try:
        bucket.put_if_match(key, data, etag=stored[1].etag if stored else None)
    except ConflictError:
        if bucket.get(key) != data:  # else another process staged the same set
            raise


def raise_if_any(
    problems: Iterable[str], kind: type[CiBuildError], hint: str = ""
) -> None:
    """Raise one error with all problems, if there are any."""
    problems_found = list(problems)
    if problems_found:
        if len(problems_found) > 1:
            problems_found.insert(0, f"{len(problems_found)} problems:")
        raise kind("\n  ".join(problems_found), hint=hint)


def _metadata(set_dir: Path, wheel_set: WheelSet) -> Mapping[str, bytes]:
    """Return the core metadata files of a set's wheels, to store beside them.

    Raises:
        WheelSetError: the folder or a wheel's metadata differs from wheels.json.
    """
    names = {wheel.filename for wheel in wheel_set.wheels}
    problems = [*file_problems(set_dir, wheel_set).values()]
    problems += [
        f"{path.name} is not part of the set."
        for path in set_dir.glob("*.whl")
        if path.name not in names
    ]
    problems += package_problems(wheel_set)
    raise_if_any(
        problems, WheelSetError, "Use the unchanged folder, or build the set again."
    )
    metadata = {}
    for wheel in wheel_set.wheels:
        with (set_dir / wheel.filename).open("rb") as file:
            data = core_metadata(file, wheel.filename)
        problems += disagreements(data, wheel)
        metadata[metadata_name(wheel.filename)] = data
    raise_if_any(problems, WheelSetError)
    return metadata
