"""Configuration of the device gate, and the command that reproduces a test under it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import field, fields, replace
from pathlib import Path

from core.digests import sha256_of
from core.frozen import frozen
from core.model import Tier
from core.process import without_credentials
from promotion.evidence.known_tests import KnownTests
from promotion.evidence.signing import Signer
from promotion.gates.common.gate_code import code_digest
from promotion.gates.device.device_request import DeviceRequest
from promotion.gates.device.gpu_machine import MachineInfo
from promotion.gates.device.lease import JaxPlatform, visible_devices
from promotion.gates.device.sessions.passes import ALL, MULTI, SINGLE
from promotion.gates.device.shards import Shard
from promotion.gates.device.suite import SUITE_FILE, SuiteSource, suite_sizes
from promotion.policy.exceptions import PolicyException

LOCK = Path(__file__).parents[3] / "build" / "requirements-gate.lock"
_NOT_REPEATED = ("size", "tests", "shard", "inside")
"""Options that do not affect how a single test runs."""


@frozen
class DeviceGateConfig:
    """Configuration of one run of the device gate.

    The request, and values derived from the machine and the bucket.

    Attributes:
        machine: devices of this machine.
        environ: the inherited environment, for masks and Kubernetes' limits.
        source: location of JAX's tests; None selects the smoke suite.
        suite: identity of the suite, as returned by `suite.suite_id`.
        devices: accepted numbers of devices; empty accepts any.
        listed: files and tests to run; their evidence is not stored.
        shard: shard for this runner, whose results are stored; None runs all tests.
        python: Python version to test with; empty when shards are merged.
        known: ledger entries about tests.
        exceptions: valid exceptions of the set, for any channel.
        bucket: value of `--bucket`, for the command that reproduces a test.
        signer: signer of shards; `run_gates` signs evidence.
    """

    request: DeviceRequest
    machine: MachineInfo
    environ: Mapping[str, str]
    source: SuiteSource | None = None
    suite: str = ""
    devices: tuple[int, ...] = ()
    listed: tuple[str, ...] = ()
    shard: Shard | None = None
    python: str = ""
    known: KnownTests = field(default_factory=KnownTests)
    exceptions: tuple[PolicyException, ...] = ()
    bucket: str = ""
    signer: Signer | None = None

    @property
    def platform(self) -> JaxPlatform:
        """Return the platform of the tests."""
        return JaxPlatform(self.request.platform)

    @property
    def size(self) -> str:
        """Return the size of JAX's suite; "" for listed tests and for the smoke suite."""
        return (
            "" if self.listed or self.source is None else self.request.size or "large"
        )

    @property
    def gate_name(self) -> str:
        """Return the gate's name, with the platform as a suffix unless it is ROCm."""
        return (
            "device" if self.platform is JaxPlatform.ROCM else f"device-{self.platform}"
        )

    @property
    def tier(self) -> Tier:
        """Return the tier of the evidence."""
        return {
            JaxPlatform.ROCM: Tier.DEVICE,
            JaxPlatform.CPU: Tier.CPU,
            JaxPlatform.CUDA: Tier.CUDA,
        }[self.platform]

    @property
    def left_out(self) -> str:
        """Return the reason why tests that need several devices are left out; "" if they run.

        Raises:
            MachineError: the environment's masks are invalid.
        """
        if self.platform is JaxPlatform.CPU:
            return ""
        if self.size and not suite_sizes()[self.size].multi:
            return f"size {self.size} leaves them out"
        several = (
            len(visible_devices(self.machine.devices, self.platform, self.environ)) > 1
        )
        return "" if several else "there is one device"

    @property
    def passes(self) -> tuple[str, ...]:
        """Return the names of the passes in order.

        Every worker on a CPU has all virtual devices.
        """
        if self.platform is JaxPlatform.CPU:
            return (ALL,)
        return (SINGLE,) if self.left_out else (SINGLE, MULTI)

    @property
    def options(self) -> dict[str, str]:
        """Return the options that reproduce a single test of this run, without defaults.

        Each line of a value repeats the option.
        """
        request = replace(
            self.request,
            devices=self.devices[0] if len(self.devices) == 1 else None,
            python=self.python,
        )
        if request.rocm_of_set:
            request = replace(request, rocm=None)  # a folder of this machine's cache
        if self.source is not None:
            place = _from_anywhere(self.source.location, remote=self.source.remote)
            location = f"{place}@{self.source.commit}"
            request = replace(request, jax_tests=location.rstrip("@"))
        values = {
            f"--{option.name.replace('_', '-')}": getattr(request, option.name)
            for option in fields(DeviceRequest)
            if option.name not in _NOT_REPEATED
            and getattr(request, option.name) != option.default
        }
        if self.bucket:
            values["--bucket"] = _from_anywhere(
                self.bucket, remote="://" in self.bucket
            )
        return {name: _as_text(value) for name, value in values.items()}

    @property
    def settings(self) -> dict[str, str]:
        """Return the settings shared by all shards and matched to reuse evidence."""
        request = self.request
        skips = sorted((skip.pattern, skip.id) for skip in self.known.active)
        return {
            "platform": self.platform.value,
            "family": request.family,
            "code": code_digest(),
            "suite": self.suite,
            "size": self.size,
            "python": self.python,
            "passes": " ".join(self.passes),
            "conditions": sha256_of(SUITE_FILE)[:16] if self.source else "",
            "tools": sha256_of(LOCK)[:16],
            "also": sha256_of(request.also) if request.also else "",
            "skips": json.dumps(skips),
            "image": request.image,
            "suite-env": "\n".join(request.suite_env),
        }


def reproduce(options: Mapping[str, str], staged: str, test: str) -> str:
    """Return the command that runs a test again with the same set and options."""
    words = []
    for name, value in {**options, "--test": test}.items():
        for line in value.split("\n"):
            words.append(f"{name}={line}" if line else name)
    return shlex.join(["python3", "build/ci_build", "gate", "device", staged, *words])


def _as_text(value: object) -> str:
    """Return the value of an option as text.

    A flag has none, and the values of a repeated option are lines.
    """
    if isinstance(value, bool):
        return ""
    if isinstance(value, tuple):
        return "\n".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _from_anywhere(location: str, *, remote: bool) -> str:
    """Return a location that is valid in other folders.

    An address without credentials, or an absolute path.
    """
    return without_credentials(location) if remote else str(Path(location).absolute())
