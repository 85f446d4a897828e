"""Bisection of an index: find the first set with which a command fails.

Each tried set is installed from its released wheels into a clean environment. Exit codes have the same meaning as in
`git bisect run`: 0 is good, 125 skips the set, 1 to 127 are bad, and anything else ends the bisection.
"""

from __future__ import annotations

import json
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.atomic import write_whole
from core.errors import GateError, MachineError, ProcessError, RequestError
from core.model import PYLOCK, ROCM_LOCK, SHA256SUMS, WHEELS_JSON, Progress, WheelSet, to_json
from core.process import Runner, render, without_credentials
from core.wheels_json import load_wheel_set
from core.wheelset import check_files
from promotion.gates.common.pythons import find_pythons
from promotion.gates.common.requirements import hashed, locked, wheels_for, write_lines
from promotion.gates.common.site import installation_error
from promotion.gates.common.uv_installer import configured_uv
from promotion.index.publish import read_head
from promotion.index.set_lookup import find_set
from promotion.storage.bucket import Bucket, fetch_to, sha256_of
from promotion.storage.keys import ReleasedIndex

GOOD, SKIP, WORST = 0, 125, 127
"""Exit codes of `git bisect run`: a good set, an untestable set, and the greatest code of a bad set."""
_SECONDS = 900.0
_KEEP = 1 << 20
"""Number of characters kept from the end of the command's output."""
_ROCM_DIGESTS = {"request.source.rocm", "request.rocm_manifest"}
"""Digests of rocm.lock and of the manifest that is made of the same ROCm."""
SET, PYTHON = "{set}", "{python}"
"""Placeholders in the command: the folder of the set, and the interpreter of its environment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A retained set of the index: the number of its ledger entry, and its digest."""

    number: int
    digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Bisection:
    """The result of a bisection.

    Attributes:
        good: the last set known to be good.
        bad: the first set known to be bad.
        skipped: sets between the two that could not be tested, so that one of them may be the first bad set.
        changed: field of wheels.json, such as `request.source.xla_commit`, or of rocm.lock, such as
            `rocm.lock.version` -> its values in `good` and `bad`.
        codes: ledger entry of each tried set -> exit code of the command.
    """

    good: Candidate
    bad: Candidate
    skipped: tuple[Candidate, ...]
    changed: Mapping[str, tuple[Any, Any]]
    codes: Mapping[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class BisectionRequest:
    """A request for a bisection.

    Attributes:
        found: sets in order; the first is good, and the last is bad.
        command: command that tells good sets from bad ones, with the placeholders SET and PYTHON.
        python: Python version of the environments; empty for the newest that this machine and both ends have.
        path: PATH of the command, after the programs of the environment.
        work: folder for the exit codes and the output of the command; a request with the same command resumes in it.
    """

    found: tuple[Candidate, ...]
    command: tuple[str, ...]
    python: str
    path: str
    work: Path


Trial = Callable[[Candidate], int]
"""A function that runs the command with a set and returns the exit code."""


def candidates(bucket: Bucket, released: ReleasedIndex, good: str, bad: str) -> tuple[Candidate, ...]:
    """Return the retained sets from the good to the bad one, in the order of their promotion.

    Args:
        good, bad: ledger entries, digests or first digits of digests.

    Raises:
        RequestError: the index lacks one of the sets, or the bad set is not newer than the good one.
    """
    head, entries = read_head(bucket, released)
    first, last = (find_set(bucket, released, text.rpartition("/")[2], head.state, entries) for text in (good, bad))
    if first >= last:
        raise RequestError(
            f"The good set, ledger entry {first}, is not older than the bad set, entry {last}.",
            hint="Exchange --good and --bad to find the set that repaired something, and invert the command.",
        )
    return tuple(
        Candidate(number=number, digest=entries.set(number).set_digest)
        for number in sorted(head.state.held)
        if first <= number <= last
    )


def bisect(
    found: Sequence[Candidate], trial: Trial, state: Path, request: Mapping[str, Any], progress: Progress
) -> tuple[Candidate, Candidate, tuple[Candidate, ...], Mapping[int, int]]:
    """Return the last good set, the first bad set, the skipped sets between them, and all exit codes.

    Args:
        found: sets in order; the first is good, and the last is bad.
        state: file of the exit codes; a bisection with an existing file resumes.
        request: values on which an exit code depends besides the set, recorded as JSON in `state`.

    Raises:
        RequestError: the file is damaged, or has the exit codes of another request.
        ProcessError: the command ended with a code above 127, or was killed.
    """
    codes = _read_codes(state, request)
    low, high = 0, len(found) - 1
    while True:
        for place in range(low + 1, high):
            code = codes.get(found[place].digest)
            if code == GOOD:
                low = place
            elif code not in (None, SKIP):
                high = place
                break
        untried = [place for place in range(low + 1, high) if found[place].digest not in codes]
        if not untried:
            tried = {one.number: codes[one.digest] for one in found if one.digest in codes}
            return found[low], found[high], tuple(found[low + 1 : high]), tried
        place = min(untried, key=lambda place: abs(2 * place - low - high))
        one = found[place]
        progress.step(f"try set {one.digest[:12]}, ledger entry {one.number}; {len(untried)} sets are left")
        code = trial(one)
        if not GOOD <= code <= WORST:
            raise ProcessError(
                f"The command ended with {code} for ledger entry {one.number}, which says neither good nor bad.",
                hint=f"Let it end with {GOOD} (good), {SKIP} (skip) or 1 to {WORST} (bad), and run this again.",
            )
        codes[one.digest] = code
        write_whole(state, json.dumps({"request": request, "codes": codes}, indent=1).encode())


def _read_codes(state: Path, request: Mapping[str, Any]) -> dict[str, int]:
    """Return digest -> exit code of the sets that the same request tried; empty without a file."""
    if not state.exists():
        return {}
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        recorded = json.loads(state.read_bytes())
        if recorded["request"] == request:
            return {str(digest): int(code) for digest, code in recorded["codes"].items()}
    raise RequestError(
        f"{state} is damaged, or has the results of another command or Python.",
        hint="Give another --work, or remove this file.",
    )


def run(
    bucket: Bucket, released: ReleasedIndex, request: BisectionRequest, runner: Runner, progress: Progress
) -> Bisection:
    """Bisect with a command that runs in the environment of each tried set, and keep its output in a log.

    Raises:
        MachineError: this machine lacks the Python, a network or disk space.
        RequestError, ProcessError: see `bisect`.
    """
    work, found = request.work.absolute(), request.found  # the command may run in another folder
    work.mkdir(parents=True, exist_ok=True)
    sets = [fetch_description(bucket, released, one) for one in (found[0], found[-1])]
    python = request.python or _common_python(sets, runner)
    interpreter = find_pythons((python,), runner).get(python)
    if interpreter is None:
        raise MachineError(f"This machine has no Python {python}.", hint=f"Run `uv python install {python}`.")

    def trial(one: Candidate) -> int:
        if python not in fetch_description(bucket, released, one).python_versions:
            progress.step(f"ledger entry {one.number} is skipped: the set does not support Python {python}")
            return SKIP
        with tempfile.TemporaryDirectory(prefix="bisect-", dir=work) as name:
            folder = fetch_set(bucket, released, one, Path(name, "set"))
            environment = Path(name, "environment")
            try:
                install(folder, python, interpreter, environment, work / "uv-cache", runner)
            except ProcessError as problem:
                error = installation_error(f"Cannot install ledger entry {one.number}", problem)
                if isinstance(error, MachineError):  # a skip would be recorded
                    raise error from problem
                progress.step(f"ledger entry {one.number} is skipped: {problem.message}")
                return SKIP
            own = environment / "bin" / "python"
            argv = [word.replace(SET, str(folder)).replace(PYTHON, str(own)) for word in request.command]
            programs = f"{own.parent}:{request.path}"
            env = {"PATH": programs, "VIRTUAL_ENV": str(environment), "PYTHONPATH": "", "PYTHONHOME": ""}
            done = runner.run(argv, env=env, check=False, keep=_KEEP)
            log = work / f"{one.number}.log"
            log.write_text(without_credentials(done.stdout + done.stderr), encoding="utf-8")
            progress.step(f"ledger entry {one.number}: `{render(argv)}` ended with {done.returncode}, output in {log}")
            return done.returncode

    asked = {"command": list(request.command), "python": python}
    good, bad, skipped, codes = bisect(found, trial, work / "codes.json", asked, progress)
    return Bisection(good=good, bad=bad, skipped=skipped, changed=changes(bucket, released, good, bad), codes=codes)


def fetch_description(bucket: Bucket, released: ReleasedIndex, one: Candidate) -> WheelSet:
    """Return a released set from its wheels.json."""
    key = released.set_file(one.digest, WHEELS_JSON)
    return load_wheel_set(bucket.get(key), key)


def fetch_set(bucket: Bucket, released: ReleasedIndex, one: Candidate, folder: Path) -> Path:
    """Download a released set to a folder, in the form that `gate` and `stage` accept.

    Raises:
        GateError: a file differs from the set.
    """
    wheel_set = fetch_description(bucket, released, one)
    for name in (WHEELS_JSON, SHA256SUMS, *wheel_set.files):
        fetch_to(bucket, released.set_file(one.digest, name), folder / name)
    for wheel in wheel_set.wheels:
        fetch_to(bucket, released.wheel(wheel.name, wheel.filename), folder / wheel.filename)
    if wrong := check_files(folder, wheel_set):
        raise GateError(
            f"The released set of ledger entry {one.number} has other bytes: {', '.join(wrong)}.",
            hint=f"Run `ci_build verify {released.index}`.",
        )
    return folder


def install(folder: Path, version: str, python: Path, environment: Path, cache: Path, runner: Runner) -> None:
    """Install the wheels of a set, jax and its dependencies into a new environment.

    Raises:
        ProcessError: uv cannot install them.
    """
    wheel_set, uv = load_wheel_set((folder / WHEELS_JSON).read_bytes()), configured_uv(runner)
    own, wheels = environment / "bin" / "python", wheels_for(wheel_set, version)
    requirements = write_lines(folder.with_name("requirements.txt"), hashed(wheels))
    rest, is_locked = folder.with_name("rest.txt"), (folder / PYLOCK).is_file()
    if is_locked:
        names = {wheel.name for wheel in wheel_set.wheels}
        write_lines(rest, locked((folder / PYLOCK).read_text(encoding="utf-8"), version, names))
    else:
        write_lines(rest, (f"{name}=={pinned}" for name, pinned in wheel_set.pins.items()))
    for command in (
        uv.create(python, environment),
        uv.install_files(own, requirements, [folder], cache),
        uv.install_rest(own, rest, locked=is_locked),
    ):
        runner.run(command.argv, env=command.env, timeout=_SECONDS)


def changes(bucket: Bucket, released: ReleasedIndex, good: Candidate, bad: Candidate) -> Mapping[str, tuple[Any, Any]]:
    """Return the differences of two sets, with those of rocm.lock instead of digests if both have it unchanged."""
    old, new = (fetch_description(bucket, released, one) for one in (good, bad))
    changed = differences(old, new)
    if not (_ROCM_DIGESTS & changed.keys() and ROCM_LOCK in old.files and ROCM_LOCK in new.files):
        return changed
    found = [bucket.get(released.set_file(one.digest, ROCM_LOCK)) for one in (good, bad)]
    if [sha256_of(data) for data in found] != [old.files[ROCM_LOCK], new.files[ROCM_LOCK]]:
        return changed
    locks = [tomllib.loads(data.decode()) for data in found]
    # The tables list each library and package; version and digest cover them.
    first, last = ({key: value for key, value in lock.items() if not isinstance(value, dict)} for lock in locks)
    rocm = {f"{ROCM_LOCK}.{key}": (first.get(key), last.get(key)) for key in sorted(first.keys() | last.keys())}
    rest = {field: values for field, values in changed.items() if field not in _ROCM_DIGESTS}
    return rest | {field: values for field, values in rocm.items() if values[0] != values[1]}


def differences(good: WheelSet, bad: WheelSet) -> Mapping[str, tuple[Any, Any]]:
    """Return field -> values in two sets, without the files, which always differ; None stands for a missing field."""
    old, new = (_fields(to_json(one)) for one in (good, bad))
    fields = sorted(old.keys() | new.keys())
    return {field: (old.get(field), new.get(field)) for field in fields if old.get(field) != new.get(field)}


def _fields(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested tables by dotted names."""
    fields: dict[str, Any] = {}
    for name, item in value.items():
        if not prefix and name in ("wheels", "files", "file_sizes", "inputs"):
            continue
        fields |= _fields(item, f"{prefix}{name}.") if isinstance(item, dict) else {prefix + name: item}
    return fields


def _common_python(sets: Sequence[WheelSet], runner: Runner) -> str:
    """Return the newest Python that every set is for and that this machine has."""
    common = set.intersection(*({*one.python_versions} for one in sets))
    for version in sorted(common, key=lambda text: int(text.partition(".")[2]), reverse=True):
        if find_pythons((version,), runner):
            return version
    raise MachineError(
        f"This machine has none of the Pythons of both sets: {', '.join(sorted(common)) or 'no common one'}.",
        hint="Install one, for example with `uv python install`.",
    )
