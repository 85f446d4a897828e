"""What the device gate is told, and the command that tells it the same again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from core.model import Tier
from core.process import without_credentials
from promotion.evidence.known_tests import KnownTestKind, KnownTests
from promotion.evidence.signing import Signer
from promotion.gates.common.code_digest import code_digest
from promotion.gates.device.lease import JaxPlatform, visible_devices
from promotion.gates.device.machine import MachineInfo
from promotion.gates.device.sessions.harness import MOST_RETRIES
from promotion.gates.device.sessions.passes import ALL, MULTI, SINGLE, Skip
from promotion.gates.device.sessions.session import SessionLimits
from promotion.gates.device.shards import Shard
from promotion.gates.device.suite import SIZES_FILE, SuiteSource, suite_sizes
from promotion.storage.bucket import sha256_of

LOCK = Path(__file__).parents[3] / "build" / "requirements-gate.lock"
AUTO = 0
"""Workers on a device: as many as it, the cores and the memory can bear."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceGateConfig:
    """What the gate is told.

    Attributes:
        machine: what was found on this one.
        environ: the environment as inherited, for masks and promises of Kubernetes.
        family: as a person named it; empty where the platform has none.
        source: where JAX's tests are; None takes the smoke suite.
        size: of JAX's suite; empty with `listed` and with the smoke suite.
        suite: which suite that is, see `suite.identify`.
        devices: how many this machine may have; none takes what there is.
        listed: files and tests to run; such evidence is not kept.
        shard: the part that this runner does; such evidence is kept as a part.
        per_device: workers that share a device; AUTO: as many as it can bear.
        workers: on a CPU; 0: as many as it can bear.
        cpus: cores that may be used; None: all that are allotted.
        python: version to test with; empty where it does not matter, as for joining parts.
        rocm: root of the ROCm to load; None takes the one that the loader finds.
        also: hash-locked requirements to install beside the set, such as those of NVIDIA's plugin.
        image: name and digest of the container's image, for evidence.
        folder: keeps the run, so that one which was killed is gone on with; None keeps nothing.
        known: what the ledgers say of tests.
        flaky_before: tests that were flaky in runs of this family that are still written down.
        seconds: how long tests took before; None takes the last promoted set's.
        bucket: as a person named it, for the command that runs a test again.
        signer: signs a shard; evidence is signed by whoever keeps it.
        on_progress: told how many tests have ended, and of how many.
    """

    platform: JaxPlatform
    machine: MachineInfo
    environ: Mapping[str, str]
    family: str = ""
    source: SuiteSource | None = None
    size: str = ""
    suite: str = ""
    devices: tuple[int, ...] = ()
    listed: tuple[str, ...] = ()
    shard: Shard | None = None
    per_device: int = 1
    workers: int = 0
    cpus: int | None = None
    python: str = ""
    rocm: Path | None = None
    also: Path | None = None
    image: str = ""
    folder: Path | None = None
    known: KnownTests = field(default_factory=KnownTests)
    flaky_before: frozenset[str] = frozenset()
    retries: int = MOST_RETRIES
    limits: SessionLimits = field(default_factory=SessionLimits)
    seconds: Mapping[str, float] | None = None
    bucket: str = ""
    signer: Signer | None = None
    on_progress: Callable[[int, int], None] = lambda _done, _total: None

    @property
    def skips(self) -> tuple[Skip, ...]:
        """Tests that are known not to work."""
        entries = (entry for entry in self.known.active if entry.kind is KnownTestKind.SKIP)
        return tuple(Skip(pattern=entry.pattern, entry=entry.id, reason=entry.reason) for entry in entries)

    def known_flake(self, test: str) -> str:
        """Why it is no news that a test is flaky; empty when it is."""
        if entry := self.known.of(test, KnownTestKind.FLAKE):
            return entry.id
        return "it was flaky before" if test in self.flaky_before else ""

    @property
    def gate_name(self) -> str:
        """What ran on a CPU, or a CUDA device, is the word of another gate."""
        return "device" if self.platform is JaxPlatform.ROCM else f"device-{self.platform}"

    @property
    def tier(self) -> Tier:
        """How strong its evidence is."""
        return {JaxPlatform.ROCM: Tier.DEVICE, JaxPlatform.CPU: Tier.CPU, JaxPlatform.CUDA: Tier.CUDA}[self.platform]

    @property
    def left_out(self) -> str:
        """Why tests that need several devices are not run; empty when they are.

        Raises:
            MachineError: the masks of the environment lie.
        """
        if self.platform is JaxPlatform.CPU:
            return ""
        if self.size and not suite_sizes()[self.size].multi:
            return f"size {self.size} leaves them out"
        several = len(visible_devices(self.machine.devices, self.platform, self.environ)) > 1
        return "" if several else "there is one device"

    @property
    def passes(self) -> tuple[str, ...]:
        """Names of the passes, in order. Every worker on a CPU has all the virtual devices there are."""
        if self.platform is JaxPlatform.CPU:
            return (ALL,)
        return (SINGLE,) if self.left_out else (SINGLE, MULTI)

    @property
    def options(self) -> dict[str, str]:
        """Those under which a test runs alone as it did here; what has its default is left out."""
        source, place = self.source, ""
        if source is not None:
            place = f"{_from_anywhere(source.place, remote=source.remote)}@{source.commit}".rstrip("@")
        per_device = {AUTO: "auto", 1: ""}.get(self.per_device, str(self.per_device))
        options = {
            "--platform": self.platform.value,
            "--family": self.family,
            "--jax-tests": place,
            "--bucket": _from_anywhere(self.bucket, remote="://" in self.bucket) if self.bucket else "",
            "--python": self.python,
            "--also": str(self.also or ""),
            "--rocm": str(self.rocm or ""),
            "--devices": str(self.devices[0]) if len(self.devices) == 1 else "",
            "--workers-per-device": per_device,
            "--workers": str(self.workers or ""),
            "--cpus": str(self.cpus or ""),
            "--retries": str(self.retries) if self.retries != MOST_RETRIES else "",
            "--test-timeout": f"{self.limits.test:g}" if self.limits.test != SessionLimits().test else "",
        }
        return {name: value for name, value in options.items() if value}

    @property
    def settings(self) -> dict[str, str]:
        """What shards have to have in common to be joined, and evidence to be an answer."""
        return {
            "platform": self.platform.value,
            "family": self.family,
            "code": code_digest(),
            "suite": self.suite,
            "size": self.size,
            "python": self.python,
            "passes": " ".join(self.passes),
            "sizes": sha256_of(SIZES_FILE)[:16] if self.size else "",
            "tools": sha256_of(LOCK)[:16],
            "also": sha256_of(self.also) if self.also else "",
            "skips": json.dumps(sorted((skip.pattern, skip.entry) for skip in self.skips)),
        }


def reproduce(options: Mapping[str, str], staged: str, test: str) -> str:
    """The one line that runs a single test again, on the same bytes and under the same conditions.

    Args:
        options: see `Told.options`.
        staged: the set, as INDEX/DIGEST.
        test: its id.
    """
    words = [f"{name}={value}" for name, value in {**options, "--test": test}.items()]
    return shlex.join(["python3", "build/ci_build", "gate", "device", staged, *words])


def _from_anywhere(place: str, *, remote: bool) -> str:
    """An address without what is secret in it, or the absolute path of a folder."""
    return without_credentials(place) if remote else str(Path(place).absolute())
