"""Requests of release commands: gates, signing keys, and a local release."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ci_build.build.request import WheelSetRequest

GATES = ("inspection", "abi", "load", "coverage", "compile", "install")
"""Gates that need no GPU, in the order in which they run."""
STRUCTURE = "structure"
"""Name that selects all of GATES."""
CORPORA = ("small", "full")
"""Corpora of the compile gate, the default one first."""
SERVE_PORT = 8000
"""Default port of `ci_build index serve`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SigningKey:
    """The key that signs evidence.

    Attributes:
        file: file of the key; None if the key is in the environment.
        text: the key, never shown; empty if the key is in a file.
        origin: option or variable that names the key.
        own: whether the key is the user's own, which is created on first use.
    """

    file: Path | None
    text: str = field(default="", repr=False)
    origin: str = ""
    own: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalRelease:
    """A release on the channel `local`.

    Attributes:
        bucket: folder or URL of the bucket.
        corpus: corpus of the compile gate.
        key: key that signs evidence.
        actor: user or CI run, for the ledger.
    """

    wheel_set: WheelSetRequest
    bucket: str
    corpus: str
    key: SigningKey
    actor: str
