"""Pins of base images and downloaded files: docker/images.toml."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.atomic import write_whole
from core.errors import RequestError

DOCKER = Path(__file__).resolve().parents[2] / "docker"
"""Directory of the Dockerfiles and pins."""
PINS = DOCKER / "images.toml"
ARCHES = ("x86_64", "aarch64")
_KEYS = {
    "base": {"repository": "origin", "tag": "version", "digest": "digest"},
    "download": {"version": "version", "url": "origin", "sha256": "digest"},
}
"""Kind of a pin -> key of its table -> attribute of `Pin`."""
_DIGESTS = {"digest": r"sha256:[0-9a-f]{64}", "sha256": r"[0-9a-f]{64}"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Pin:
    """A pinned base image or file.

    Attributes:
        kind: base or download.
        name: name such as manylinux_2_28, bazel, llvm-18 or python-3.12.
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


@dataclass(frozen=True, kw_only=True, slots=True)
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
            available = sorted(
                {pin.name for pin in self.pins if (pin.kind, pin.arch) == (kind, arch)}
            )
            raise RequestError(
                f"{self.path} has no {kind} {name} for {arch}.",
                hint=(
                    "Add its table to the file. Pinned for this architecture:"
                    f" {', '.join(available) or 'nothing'}."
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
        return next(
            (
                pin
                for pin in self.pins
                if (pin.kind, pin.name, pin.arch) == (kind, name, arch)
            ),
            None,
        )


def load_pins(path: Path = PINS) -> ImagePins:
    """Read and check a file of pins; raise RequestError with all problems of an invalid file."""
    try:
        return _parse_pins(path.read_text(encoding="utf-8"), path)
    except (OSError, ValueError) as error:
        raise RequestError(
            f"Cannot read {path}: {error}.",
            hint="Restore the file from the repository.",
        ) from error


def _parse_pins(text: str, path: Path) -> ImagePins:
    table = tomllib.loads(text)
    if problems := list(_problems(table)):
        raise RequestError(f"{path}: {'; '.join(problems)}.", hint="Fix the file.")
    pins = tuple(
        Pin(
            kind=kind,
            name=name,
            arch=arch,
            **{_KEYS[kind][key]: value for key, value in row.items()},
        )
        for kind, name, arch, row in _rows(table)
    )
    return ImagePins(path=path, pins=pins)


def _rows(table: Mapping[str, Any]) -> Iterator[tuple[str, str, str, Any]]:
    for kind in _KEYS:
        names = table.get(kind, {})
        for name, arches in names.items() if isinstance(names, dict) else ():
            for arch, row in arches.items() if isinstance(arches, dict) else ():
                yield kind, name, arch, row


def _problems(table: Mapping[str, Any]) -> Iterator[str]:
    for word in sorted(set(table) - set(_KEYS)):
        yield f"unknown key: {word}"
    for kind, name, arch, row in _rows(table):
        where = f"{kind}.{name}.{arch}"
        if arch not in ARCHES:
            yield f"{where}: unknown architecture: {arch}"
        if not isinstance(row, dict) or sorted(row) != sorted(_KEYS[kind]):
            yield f"{where}: expected exactly the keys {', '.join(_KEYS[kind])}"
            continue
        if not all(isinstance(value, str) for value in row.values()):
            yield f"{where}: a value is not a string"
            continue
        for key, pattern in _DIGESTS.items():
            if row.get(key) and not re.fullmatch(pattern, row[key]):
                yield f"{where}: not a digest: {row[key]!r}"


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
        lines.append(
            f'{key[1]}{key[2]}"{changes[table]}"\n'
            if key and table in changes
            else line
        )
    return "".join(lines)


def save(path: Path, changes: Mapping[str, str]) -> None:
    """Write new digests, given by label, to a file of pins, atomically."""
    text = with_digests(path.read_text(encoding="utf-8"), changes)
    _parse_pins(text, path)
    mode = path.stat().st_mode & 0o777
    write_whole(path, text.encode())
    path.chmod(mode)
