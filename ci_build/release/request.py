"""What release commands are asked for: gates, the device gate, signing keys, and a local release."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ci_build.build.request import WheelSetRequest

GATES = ("inspection", "abi", "load", "coverage", "compile", "install")
"""Gates that need no GPU, in the order in which they run."""
STRUCTURE = "structure"
"""Name of all of them."""
CORPORA = ("small", "full")
"""Corpora of the compile gate, the default one first."""
SERVE_PORT = 8000
"""Default port of `ci_build index serve`."""
RETRIES = 40
"""Default number of failed tests that run again; more failures are not retried."""
TEST_TIMEOUT = 900.0
"""Default seconds for each test of the device gate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SigningKey:
    """The key that signs evidence.

    Attributes:
        file: file of the key; None when the environment holds it.
        text: the key, never shown; empty when a file holds it.
        origin: option or variable that names the key.
        own: whether it is the user's own key, which is created on first use.
    """

    file: Path | None
    text: str = field(default="", repr=False)
    origin: str = ""
    own: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceOptions:
    """Options of the device gate; `ci_build.release.device_gate.parse_config` checks them.

    Attributes:
        test_timeout: seconds for each test.
    """

    platform: str
    family: str
    jax_tests: str
    size: str = ""
    test_list: Path | None = None
    tests: tuple[str, ...] = ()
    shard: str = ""
    devices: int | None = None
    workers_per_device: str = ""
    workers: int = 0
    cpus: int | None = None
    python: str
    rocm: Path | None = None
    also: Path | None = None
    image: str = ""
    work: Path | None = None
    retries: int = RETRIES
    test_timeout: float = TEST_TIMEOUT


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalRelease:
    """A release on this machine, into a bucket that is a folder.

    Attributes:
        corpus: corpus of the compile gate.
        key: key that signs evidence.
        actor: user or CI run, for the ledger.
    """

    wheel_set: WheelSetRequest
    bucket: Path
    corpus: str
    key: SigningKey
    actor: str
