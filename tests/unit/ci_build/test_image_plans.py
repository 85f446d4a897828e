"""Inputs and dry runs of images."""

from __future__ import annotations

import platform
import re
from dataclasses import replace
from typing import Any

import pytest

from ci_build import cli
from ci_build.images import image_builder as builder_module
from ci_build.images.engine_images import ContainerImage
from ci_build.images.image_builder import SEARCH, ImageBuild, ImageBuilder
from ci_build.images.image_pins import DOCKER, load_pins
from core.digests import sha256_of
from core.errors import FormatError, InputError, ProcessError
from core.process import ProcessResult


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test if an engine is looked for."""
    monkeypatch.setattr(
        builder_module,
        "find_engine",
        lambda *_: pytest.fail("a container engine was looked for"),
    )


def planned(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """Return the output of a dry run, or the message if it fails.

    Long commands are joined to one line.
    """
    assert cli.run(["images", *words, "--dry-run"]) == code
    done = capsys.readouterr()
    return re.sub(r" \\\n\s+", " ", done.err if code else done.out)


@pytest.mark.usefixtures("no_engine")
def test_build_dry_run_shows_downloads_and_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = planned(capsys, "build", "--push", "--image-registry=host/x")
    base = load_pins().get("base", "manylinux_2_28", platform.machine())
    assert f"--build-arg BASE={base.reference}" in told
    assert load_pins().get("download", "bazel", platform.machine()).digest in told
    assert re.search(r"push jax-manylinux_2_28:[0-9a-f]{16} to host/x\n", told)
    told = planned(capsys, "build", "--base-docker=mine:2")
    assert "--build-arg BASE=mine:2" in told


def all_images(builder: ImageBuilder) -> list[ImageBuild]:
    """Return the inputs of every Dockerfile."""
    builder.rocm = dict.fromkeys(
        ("REPOSITORY", "GRAPHICS", "KEY", "FINGERPRINT", "PACKAGES"), "x"
    )
    return builder.builds()


def test_dockerfiles_declare_every_argument(
    image_builder: ImageBuilder,
) -> None:
    """Engines only warn about an argument that a Dockerfile does not declare."""
    images = all_images(image_builder)
    assert {image.dockerfile for image in images} == {
        path.name for path in DOCKER.glob("*.Dockerfile")
    }
    for image in images:
        text = (DOCKER / image.dockerfile).read_text()
        declared = set(re.findall(r"^ARG (\w+)$", text, re.MULTILINE))
        assert declared == {"BASE", *image.arguments}, image.dockerfile
        for name in declared:
            assert f"${{{name}}}" in text


def test_dockerfiles_copy_files_of_their_context(
    image_builder: ImageBuilder,
) -> None:
    for image in all_images(image_builder):
        context = [*image.texts, *image.downloads]
        text = (DOCKER / image.dockerfile).read_text()
        for words in re.findall(r"^COPY ((?!--from).*) \S+$", text, re.MULTILINE):
            for word in words.split():
                stem = word.rstrip("/").partition("*")[0]
                assert any(path.startswith(stem) for path in context), word


TOOLS = ImageBuild(name="x", dockerfile="manylinux_2_28.Dockerfile", base="a")
PIN = load_pins().get("download", "bazel", "x86_64")


@pytest.mark.parametrize(
    "changes",
    [
        {"dockerfile": "dnf.Dockerfile"},
        {"base": "b"},
        {"texts": {"a": "b"}},
        {"downloads": {"a": PIN}},
        {"arguments": {"A": "b"}},
    ],
)
def test_tag_of_other_content_differs(changes: dict[str, Any]) -> None:
    assert replace(TOOLS, **changes).tag != TOOLS.tag


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"image": SEARCH}, "no registry is configured"),
        ({"image": "absent:1"}, "Cannot pull absent:1: no"),
        ({"image": SEARCH, "registry": "a.b/c"}, "Cannot pull a.b/c/jax-many"),
    ],
)
def test_missing_builder_image_is_refused(
    image_builder: ImageBuilder,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    said: str,
) -> None:
    def run(argv: list[str], *, check: bool = True, **_: object) -> ProcessResult:
        if check:
            raise ProcessError(f"{argv[0]} failed\nno")
        return ProcessResult(returncode=1)

    for name, value in changes.items():
        setattr(image_builder, name, value)
    monkeypatch.setattr(image_builder.host, "run", run)
    with pytest.raises(InputError, match=said):
        image_builder.obtain()


def test_builder_image_with_tag_of_content_is_not_built(
    image_builder: ImageBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(_: ImageBuilder, name: str) -> ContainerImage:
        return ContainerImage(name=name, id="sha256:1", digests=())

    monkeypatch.setattr(ImageBuilder, "_find", find)
    monkeypatch.setattr(ImageBuilder, "build", lambda *_: pytest.fail("it is built"))
    assert image_builder.obtain().name == image_builder.builds()[0].tag


def test_image_that_engine_did_not_keep_is_reported(
    image_builder: ImageBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A buildx with a driver of its own builds images that the engine does not have."""
    monkeypatch.setattr(image_builder, "_find", lambda _: None)
    monkeypatch.setattr(
        image_builder.host, "run", lambda *_, **__: ProcessResult(returncode=0)
    )
    with pytest.raises(ProcessError, match="the engine does not list it"):
        image_builder.build(TOOLS)


def test_download_that_differs_from_pin_is_refused_and_not_kept(
    image_builder: ImageBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = [b"another", b"content"]

    def download(_: ImageBuilder, __: str, write: Any) -> str:
        data = served.pop(0)
        write(data)
        return sha256_of(data)

    monkeypatch.setattr(ImageBuilder, "download", download)
    pin = replace(PIN, digest=sha256_of(b"content"))
    with pytest.raises(InputError, match=r"but download\.bazel\.x86_64 is pinned to"):
        image_builder.fetch(pin)
    for _ in range(2):
        path = image_builder.fetch(pin)
        assert path.read_bytes() == b"content"
    assert [*path.parent.iterdir()] == [path]


def test_pins_option_of_unreadable_file_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "cannot be read" in planned(
        capsys, "build", "--pins=absent.toml", code=FormatError.exit_code
    )
