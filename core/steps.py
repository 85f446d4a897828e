"""Results of steps, stored by input digest, so that only missing steps are executed."""

from __future__ import annotations

import hashlib
import json
import shutil
import zlib
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from core.digests import sha256_of
from core.errors import FormatError
from core.frozen import frozen
from core.model import Finding, Wheel, to_json
from core.own_files import ROOT, own_files
from core.records import read_json
from core.store import ContentStore, mark_used

_RESULT = "result.json"
_LIBRARIES = ("auditwheel", "deflate", "packaging", "pyelftools", "zstandard")
"""Libraries whose version may change the bytes of a repaired wheel."""
_SOURCES = (".py", ".toml", ".txt", ".json", ".lock", ".cc", ".h", ".hip", ".inc")
_OWN_FOLDERS = ("ci_build", "core", "kernels", "pjrt", "plugin", "wheelkit")


def own_digest() -> str:
    """Return the SHA-256 of this program's sources.

    A changed program does not reuse old results.
    """
    total = hashlib.sha256()
    for path in own_files(ROOT, _OWN_FOLDERS):
        if path.suffix in _SOURCES:
            total.update(f"{path.relative_to(ROOT)}\0{path.stat().st_size}\0".encode())
            total.update(path.read_bytes())
    return total.hexdigest()


def tool_versions() -> dict[str, str]:
    """Return the digest of this program and the versions of the libraries that write wheels."""
    versions = {name: metadata.version(name) for name in _LIBRARIES}
    return {
        "ci_build": own_digest(),
        "zlib": zlib.ZLIB_RUNTIME_VERSION,
        **versions,
    }


def step_key(**parts: object) -> str:
    """Return the SHA-256 of all values that determine the result of a step."""
    canonical = json.dumps(
        to_json(parts), sort_keys=True, separators=(",", ":"), default=_bytes_as_text
    )
    return sha256_of(canonical.encode())


def _bytes_as_text(value: object) -> str:
    if isinstance(value, bytes):
        return sha256_of(value)
    raise TypeError(f"{type(value).__name__} cannot be part of a step's key")


@frozen
class FinishedStep:
    """Result of a step.

    Attributes:
        folder: folder with the wheel, and with `debug/` if there are debug files.
        saved: line for users about the dropped parts and the saved bytes; empty if
            nothing was dropped.
        findings: warnings and notes on the wheel.
    """

    wheel: Wheel
    folder: Path
    saved: str
    findings: tuple[Finding, ...] = ()


class StepStore(ContentStore):
    """Results of steps: `<root>/<key>/` with the wheel, `debug/` and result.json."""

    def find(self, key: str) -> FinishedStep | None:
        """Return a finished step; None if the step has to run."""
        folder = self.folder(key)
        mark_used(folder)
        try:
            step = read_json((folder / _RESULT).read_bytes(), FinishedStep, _RESULT)
        except (OSError, FormatError):
            return None
        path = folder / step.wheel.filename
        if not path.is_file() or sha256_of(path) != step.wheel.sha256:
            shutil.rmtree(folder, ignore_errors=True)
            return None
        return replace(step, folder=folder)

    def keep(self, key: str, step: FinishedStep) -> FinishedStep:
        """Move the folder of a finished step into the store.

        If another run was first, return its result, which may be in use.
        """
        text = json.dumps(to_json(step), indent=1, default=str)
        (step.folder / _RESULT).write_text(text, encoding="utf-8")
        if not self.publish(step.folder, key):
            if first := self.find(key):
                return first
            shutil.rmtree(self.folder(key), ignore_errors=True)  # it is damaged
            if not self.publish(step.folder, key) and (first := self.find(key)):
                return first
        return replace(step, folder=self.folder(key))
