"""docker/images.toml: form, missing digests, and updates that change digests only."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from ci_build.cli.commands.images import current_digest
from ci_build.images.image_builder import ImageBuilder
from ci_build.images.image_pins import PINS, Pin, load_pins, save
from core.errors import FormatError, RequestError
from core.process import ProcessResult

_DIGEST = "1" * 64
TEXT = f"""
[base.small.x86_64]
repository = "127.0.0.1:5000/a/b"
tag = "1"
digest = "sha256:{_DIGEST}"

# Why this one.
[download."python-3.12".x86_64]
version = "3.12.1"
url = "https://host/a+b"
sha256 = ""
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "images.toml"
    path.write_text(text)
    return path


def test_images_toml_has_every_digest_and_no_latest() -> None:
    assert [pin.label for pin in load_pins().pins if not pin.digest] == []
    assert not re.search(r"\blatest\b", PINS.read_text())


def test_get_pin_error_lists_known_pins(tmp_path: Path) -> None:
    pins = load_pins(write(tmp_path, TEXT))
    small = pins.get("base", "small", "x86_64")
    assert small.reference == f"127.0.0.1:5000/a/b@sha256:{'1' * 64}"
    with pytest.raises(
        RequestError,
        match=r"no download bazel for x86_64.*Pinned for this architecture: .*python-3.12",
    ):
        pins.get("download", "bazel", "x86_64")
    with pytest.raises(RequestError, match=r"no digest.*Run `ci_build images update`"):
        pins.get("download", "python-3.12", "x86_64")


def test_load_pins_refuses_other_digest(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="not a digest"):
        load_pins(write(tmp_path, TEXT.replace(_DIGEST, _DIGEST[1:])))


@pytest.mark.parametrize(("held", "current"), [("2", "2"), ("3", "1")])
def test_update_takes_digest_of_pulled_tag(
    image_builder: ImageBuilder,
    monkeypatch: pytest.MonkeyPatch,
    held: str,
    current: str,
) -> None:
    """Podman lists the digests of the index and of the image for one architecture."""
    commands = list[Sequence[str]]()
    digests = [f"quay.io/a@sha256:{digit * 64}" for digit in "12"]

    def run(argv: Sequence[str], **_: object) -> ProcessResult:
        commands.append(argv)
        facts = {"Id": "1" * 64, "RepoDigests": [*digests, f"b@sha256:{'0' * 64}"]}
        return ProcessResult(returncode=0, stdout=json.dumps(facts))

    monkeypatch.setattr(image_builder.host, "run", run)
    pin = Pin(
        kind="base",
        name="small",
        arch="aarch64",
        origin="quay.io/a",
        version="7",
        digest=f"sha256:{held * 64}",
    )
    assert current_digest(image_builder, pin) == f"sha256:{current * 64}"
    assert commands[0][1:] == ("pull", "--platform", "linux/arm64", "quay.io/a:7")


def test_save_changes_only_digests(tmp_path: Path) -> None:
    path = write(tmp_path, TEXT)
    path.chmod(0o640)
    save(path, {"download.python-3.12.x86_64": "2" * 64})
    assert path.read_text() == TEXT.replace('sha256 = ""', f'sha256 = "{"2" * 64}"')
    assert path.stat().st_mode & 0o777 == 0o640
    with pytest.raises(FormatError):
        save(path, {"base.small.x86_64": "nonsense"})
    assert sorted(tmp_path.iterdir()) == [path]
    assert load_pins(path).get("base", "small", "x86_64").digest == "sha256:" + "1" * 64
