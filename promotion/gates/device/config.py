"""Configuration of the device gate, and the command that reproduces a test under it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from core.digests import sha256_of
from core.frozen import frozen
from core.model import Tier
from core.process import without_credentials
from promotion.evidence.signing import Signer
from promotion.gates.common.gate_code import code_digest
from promotion.gates.device.device_request import DeviceRequest, option_words
from promotion.gates.device.gpu_machine import MachineInfo
from promotion.gates.device.lease import JaxPlatform, visible_devices
from promotion.gates.device.sessions.passes import ALL, MULTI, SINGLE
from promotion.gates.device.suite import SUITE_FILE, SuiteSource, suite_sizes
from promotion.policy.exceptions import PolicyException

LOCK = Path(__file__).parents[3] / "build" / "requirements-gate.lock"
_NOT_REPEATED: Mapping[str, Any] = {"size": "", "tests": ()}
"""Defaults of options that do not affect how a single test runs."""


@frozen
class Shard:
    """Shard `number` of `count`, counted from 1, whose outcome goes to a folder."""

    number: int
    count: int
    folder: Path


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
        shard: shard for this worker of a cluster; None runs all tests.
        python: Python version to test with.
        exceptions: valid exceptions of the set, for any channel.
        bucket: value of `--bucket`, for the command that reproduces a test.
        signer: signer of the evidence.
    """

    request: DeviceRequest
    machine: MachineInfo
    environ: Mapping[str, str]
    source: SuiteSource | None = None
    suite: str = ""
    devices: tuple[int, ...] = ()
    shard: Shard | None = None
    python: str = ""
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
            ""
            if self.request.tests or self.source is None
            else self.request.size or "large"
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
    def words(self) -> tuple[str, ...]:
        """Return the options that reproduce a single test of this run."""
        request = replace(
            self.request,
            devices=self.devices[0] if len(self.devices) == 1 else None,
            python=self.python,
            **_NOT_REPEATED,
        )
        if request.rocm_of_set:
            request = replace(request, rocm=None)  # a folder of this machine's cache
        if self.source is not None:
            location = without_credentials(self.source.absolute)
            request = replace(request, jax_tests=location)
        words = [*option_words(request)]
        if self.bucket:
            words.append(f"--bucket={self.bucket_anywhere}")
        return tuple(words)

    @property
    def bucket_anywhere(self) -> str:
        """Return the bucket as text that is valid in other folders."""
        if not self.bucket or "://" in self.bucket:
            return without_credentials(self.bucket)
        return str(Path(self.bucket).absolute())

    @property
    def settings(self) -> dict[str, str]:
        """Return the settings shared by all shards and matched to reuse evidence."""
        request = self.request
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
        }


def reproduce(words: Sequence[str], staged: str, test: str) -> str:
    """Return the command that runs a test again with the same set and options."""
    words = [staged, *words, f"--test={test}"]
    return shlex.join(["python3", "build/ci_build", "gate", "device", *words])
