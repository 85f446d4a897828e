"""Gates, their context and their checks."""

from __future__ import annotations

import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any, TypeVar

from core.digests import sha256_of
from core.errors import GateError
from core.frozen import frozen
from core.model import Finding, Progress, Severity, Tier, Wheel, WheelSet
from core.process import Runner
from promotion.evidence.evidence import ANY
from promotion.gates.common.installers import pip_config
from promotion.gates.common.pythons import (
    find_pythons,
    install_hint,
    require_python,
)
from promotion.policy.exceptions import PolicyException
from promotion.storage.bucket import Bucket
from promotion.storage.object_keys import StagedSet

T = TypeVar("T")

_RESERVED = frozenset({"name", "outcome", "why", "findings"})


@frozen
class Check:
    """Result of one check of a gate; a check fails if one of its findings is an error.

    Attributes:
        name: subject of the check, such as a file name.
        skipped: reason why the check did not run; empty if the check ran.
        known: reason for an expected failure; empty otherwise.
        target: gfx target, or ANY.
        times: number of equal checks that this check represents; 0 for information that
            is not counted.
        details: further JSON values for the evidence.
    """

    name: str
    findings: tuple[Finding, ...] = ()
    skipped: str = ""
    known: str = ""
    target: str = ANY
    times: int = 1
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse details that collide with the fixed fields of a check in evidence."""
        if reserved := _RESERVED & self.details.keys():
            raise ValueError(
                f"Names of details are reserved: {', '.join(sorted(reserved))}."
            )

    @property
    def failed(self) -> bool:
        """Report whether one of the findings is an error."""
        return any(finding.severity is Severity.ERROR for finding in self.findings)

    @property
    def outcome(self) -> str:
        """Return the outcome that counts the check: failed, skipped, known or passed."""
        if self.failed:
            return "failed"
        if self.skipped:
            return "skipped"
        return "known" if self.known else "passed"


class SharedResults:
    """Results that the gates of one run compute once.

    The first that needs a result computes it, others wait.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks = defaultdict[Hashable, threading.Lock](threading.Lock)
        self._results: dict[Hashable, Any] = {}

    def get(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return the result for this key, computed unless an earlier call did.

        Errors are not kept.
        """
        with self._lock:
            lock = self._locks[key]
        with lock:
            if key not in self._results:
                self._results[key] = compute()
            result: T = self._results[key]
            return result


@frozen
class GateContext:
    """A staged set under test, with the bucket, runner and directories of the gate.

    Attributes:
        targets: gfx targets to check, some or all targets of the set; used by gates
            with evidence for each target.
        work: an empty directory, removed after the gate.
        shared: a directory that all gates of one run share.
        results: what gates of this run have computed for all of them.
        exceptions: valid exceptions of the policy for the set.
    """

    bucket: Bucket
    staged: StagedSet
    wheel_set: WheelSet
    targets: tuple[str, ...]
    runner: Runner
    progress: Progress
    work: Path
    shared: Path
    results: SharedResults = field(default_factory=SharedResults)
    exceptions: tuple[PolicyException, ...] = ()

    def pythons(self) -> Mapping[str, Path]:
        """Return the interpreters of this machine for the set's versions of Python.

        They are looked up before gates run code of the tested wheels.
        """
        versions = self.wheel_set.python_versions
        return self.results.get("pythons", lambda: find_pythons(versions, self.runner))

    def require_python(self) -> None:
        """Say which Pythons of the set this machine lacks.

        Raises:
            MachineError: it lacks all of them.
        """
        versions = self.wheel_set.python_versions
        found = self.pythons()
        require_python(versions, found)
        if missing := [version for version in versions if version not in found]:
            text = f"This machine has no Python {', '.join(missing)}"
            hint = install_hint(missing)
            self.progress.step(f"{text}: its checks are skipped. {hint}")

    def first_python(self) -> str:
        """Return the first Python of the set that this machine has, or else of the set."""
        pythons = self.pythons()
        versions = self.wheel_set.python_versions
        return next(
            (version for version in versions if version in pythons), versions[0]
        )

    def pip_config(self) -> Mapping[str, str]:
        """Return the user's pip configuration; see `installers.pip_config`."""
        return self.results.get("pip config", lambda: pip_config(self.runner))

    def sha256(self, path: Path) -> str:
        """Return the SHA-256 of a file, which is read once in a run of gates unless it changes."""
        status = path.stat()
        identity = (
            path,
            status.st_dev,
            status.st_ino,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
        )
        return self.results.get(identity, lambda: sha256_of(path))

    def wheel(self, wheel: Wheel) -> Path:
        """Return the path of a staged wheel.

        Raises:
            GateError: the sha256 of the staged wheel differs from wheels.json.
        """
        path = self.bucket.fetch(self.staged.file(wheel.filename), self.work)
        if (actual := self.sha256(path)) != wheel.sha256:
            raise GateError(
                f"The staged {wheel.filename} has sha256 {actual}, but wheels.json has"
                f" {wheel.sha256}.",
                hint="Stage the set again.",
            )
        return path

    def debug_file(self, wheel: Wheel, path: str) -> Path | None:
        """Return the symbol table file of a wheel's library, or None if absent."""
        name = f"debug/{wheel.filename.removesuffix('.whl')}/{path}.debug"
        if name not in self.wheel_set.files:
            return None
        return self.bucket.fetch(self.staged.file(name), self.work)


@frozen
class Gate:
    """A named gate.

    Attributes:
        per_target: whether evidence is stored for each gfx target instead of the whole
            set.
        run: function that yields the checks.
        settings: options and digests of the gate's data; evidence with other settings
            is not reused.
        partial: whether only a part is checked, so that the evidence is shown but not
            stored.
        runs_wheels: whether it runs a Python of the set.
        has_options: whether a RequestError is about options of the user, so that no
            evidence of the set records it.
    """

    name: str
    tier: Tier
    per_target: bool
    run: Callable[[GateContext], Iterable[Check]]
    settings: Mapping[str, str] = field(default_factory=dict)
    partial: bool = False
    runs_wheels: bool = False
    has_options: bool = False

    def subjects(self, targets: tuple[str, ...]) -> tuple[str, ...]:
        """Return the targets of the gate's evidence: these targets, or ANY for the whole set."""
        return targets if self.per_target else (ANY,)


def error(code: str, message: str, remedy: str, *, member: str = "") -> Finding:
    """Return a finding that makes a check fail."""
    return Finding(
        code=code,
        severity=Severity.ERROR,
        message=message,
        remedy=remedy,
        member=member,
    )


def warning(code: str, message: str, remedy: str = "", *, member: str = "") -> Finding:
    """Return a finding that does not make a check fail."""
    finding = error(code, message, remedy, member=member)
    return replace(finding, severity=Severity.WARNING)


def signal_name(number: int) -> str:
    """Return the name of a signal such as SIGSEGV.

    A real-time signal without a name becomes `signal 40`.
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
