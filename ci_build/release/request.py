"""What release commands are asked for: gates, signing keys, and a local release."""

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
