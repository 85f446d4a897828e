"""Pins of base images and downloaded files: docker/images.toml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Literal

from core.atomic import write_whole
from core.errors import RequestError
from core.frozen import frozen
from core.records import parse_toml, read_toml

DOCKER = Path(__file__).resolve().parents[2] / "docker"
"""Directory of the Dockerfiles and pins."""
PINS = DOCKER / "images.toml"
_Arch = Literal["x86_64", "aarch64"]


@dataclass(frozen=True, slots=True)
class Pin:
    """A pinned base image or file.

    Attributes:
        kind: base or download.
        name: name such as manylinux_2_28, bazel or llvm-18.
        arch: architecture as printed by `uname -m`.
        origin: repository with its registry, or URL.
        version: tag of the image, or version of the software in the file.
        digest: `sha256:…` of the image's manifest, or hexadecimal sha256 of the file;
            empty if not yet known.
    """

    kind: str
    name: str
    arch: str
    origin: str
    version: str
    digest: str

    @property
    def label(self) -> str:
        """The name of the pin's table, for messages."""
        return f"{self.kind}.{self.name}.{self.arch}"

    @property
    def reference(self) -> str:
        """The repository and digest of an image."""
        return f"{self.origin}@{self.digest}"


@frozen
class ImagePins:
    """Pins in a file.

    Attributes:
        path: path of the file.
    """

    path: Path
    pins: tuple[Pin, ...]

    def get(self, kind: str, name: str, arch: str) -> Pin:
        """Return a pin with a digest.

        Raises:
            RequestError: there is no such pin, or its digest is empty.
        """
        result = self.find(kind, name, arch)
        if result is None:
            pinned = {
                pin.name for pin in self.pins if (pin.kind, pin.arch) == (kind, arch)
            }
            raise RequestError(
                f"{self.path} has no {kind} {name} for {arch}.",
                hint=(
                    "Add its table to the file. Pinned for this architecture:"
                    f" {', '.join(sorted(pinned)) or 'nothing'}."
                ),
            )
        if not result.digest:
            raise RequestError(
                f"{self.path}: {result.label} has no digest.",
                hint="Run `ci_build images update`.",
            )
        return result

    def find(self, kind: str, name: str, arch: str) -> Pin | None:
        """Return a pin, or None."""
        for pin in self.pins:
            if (pin.kind, pin.name, pin.arch) == (kind, name, arch):
                return pin
        return None


@frozen
class _Base:
    """Table of a base image: its origin, version and digest, in the order of `Pin`."""

    repository: str
    tag: str
    digest: str

    def __post_init__(self) -> None:
        _check_digest(self.digest, r"sha256:[0-9a-f]{64}")


@frozen
class _Download:
    """Table of a downloaded file, in the same order."""

    url: str
    version: str
    sha256: str

    def __post_init__(self) -> None:
        _check_digest(self.sha256, r"[0-9a-f]{64}")


def _check_digest(text: str, pattern: str) -> None:
    if text and not re.fullmatch(pattern, text):
        raise ValueError(f"not a digest: {text!r}")


@frozen
class _PinFile:
    """Content of `images.toml`: name -> architecture -> table."""

    base: Mapping[str, Mapping[_Arch, _Base]] = field(default_factory=dict)
    download: Mapping[str, Mapping[_Arch, _Download]] = field(default_factory=dict)


def load_pins(path: Path = PINS) -> ImagePins:
    """Read and check a file of pins; FormatError if it is invalid."""
    file = read_toml(path, _PinFile)
    pins = []
    for kind, tables in (("base", file.base), ("download", file.download)):
        for name, rows in tables.items():
            for arch, row in rows.items():
                pins.append(Pin(kind, name, arch, *astuple(row)))
    return ImagePins(path=path, pins=tuple(pins))


def with_digests(text: str, changes: Mapping[str, str]) -> str:
    """Return the text of a file of pins with new digests, given by label.

    All other text is kept, with comments.
    """
    lines = []
    table = ""
    for line in text.splitlines(keepends=True):
        if header := re.fullmatch(r"\[([^\]]+)\]\s*(?:#.*)?", line.strip()):
            table = header[1].replace('"', "")
        key = re.match(r"(digest|sha256)(\s*=\s*)", line)
        if key and table in changes:
            line = f'{key[1]}{key[2]}"{changes[table]}"\n'
        lines.append(line)
    return "".join(lines)


def save(path: Path, changes: Mapping[str, str]) -> None:
    """Write new digests, given by label, to a file of pins, atomically."""
    text = with_digests(path.read_text(encoding="utf-8"), changes)
    parse_toml(text.encode(), _PinFile, str(path))
    mode = path.stat().st_mode & 0o777
    write_whole(path, text.encode())
    path.chmod(mode)
