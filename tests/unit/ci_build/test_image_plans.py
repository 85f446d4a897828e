"""Inputs and dry runs of images."""

from __future__ import annotations

import platform
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci_build import cli
from ci_build.cli.commands.image_build import find_image_rocm
from ci_build.cli.commands.image_test import SELFTEST
from ci_build.cli.options.settings import Settings
from ci_build.images import image_builder as builder_module
from ci_build.images.engine_images import ContainerImage
from ci_build.images.image_builder import ImageBuild, ImageBuilder
from ci_build.images.image_pins import DOCKER, load_pins
from ci_build.images.manylinux_image import SEARCH, builder_image, builder_images
from ci_build.images.runtime_image import runtime_image, runtime_name
from ci_build.rocm.rocm_request import PipIndex
from ci_build.wheelset.set_files import write_set
from core.digests import sha256_of
from core.errors import FormatError, InputError, ProcessError, WheelSetError
from core.http.client import canonical
from core.pip import Resolved
from core.process import ProcessResult
from core.report import Reporter
from core.targets import expand
from core.wheelset import read_set
from tests.support.made_kernels import clean_kernels
from tests.support.sets import wheel_set
from tests.support.wheel_sets import make_set, make_wheels, set_wheel

ROCM = (
    "--therock-path=https://host.invalid/therock-dist-linux-gfx94X-dcgpu-7.2.0.tar.gz"
)
JAX = "jax-0.10.2-py3-none-any.whl"


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    """Make a set with kernels whose jax is not available."""
    folder = tmp_path / "dist"
    wheels = [
        *make_wheels(folder, pythons=("3.12",)),
        set_wheel(clean_kernels(), folder),
    ]
    jax = Resolved(
        name="jax",
        version="0.10.2",
        filename=JAX,
        url=f"https://host.invalid/{JAX}",
        sha256="1" * 64,
        requires_python=">=3.11",
    )
    made = make_set(wheels, python_versions=("3.12",), files={})
    write_set(folder, made, {"3.12": [jax]})
    return folder


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
    told = planned(capsys, "build", "-t", "mine:1", "--push", "--image-registry=host/x")
    base = load_pins().get("base", "manylinux_2_28", platform.machine())
    assert f"--build-arg BASE={base.reference}" in told
    assert load_pins().get("download", "bazel", platform.machine()).digest in told
    assert re.search(r"\$ docker tag jax-manylinux_2_28:[0-9a-f]{16} mine:1\n", told)
    assert "push mine:1 to host/x" in told
    told = planned(capsys, "build", "--base-docker=mine:2")
    assert "--build-arg BASE=mine:2" in told


@pytest.mark.usefixtures("no_engine")
def test_build_of_set_dry_run_shows_rocm_and_wheels(
    dist: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = planned(capsys, "build", str(dist), ROCM)
    assert "$ docker build --tag jax-ubu24.rocm720 " in told
    assert f"/{JAX} to wheels/{JAX}" in told
    assert "--label com.amdgpu.jax_version=0.10.2" in told
    assert "download https://host.invalid/therock-dist" in told
    told = planned(capsys, "build", str(dist), "--base-docker=rocm:1")
    assert "--tag jax-ubu24.rocm720 " in told
    assert "--build-arg BASE=rocm:1" in told
    told = planned(capsys, "build", str(dist), ROCM, "--base-docker=ubu22")
    assert "--tag jax-ubu22.rocm720 " in told
    assert "--build-arg BASE=docker.io/library/ubuntu@sha256:0e0a" in told
    refused = {
        (): "No ROCm was given",
        (ROCM, "--python-versions=3.13"): "has no wheels for Python 3.13",
    }
    for words, problem in refused.items():
        assert problem in planned(capsys, "build", str(dist), *words, code=2)
    next(dist.glob("*.whl")).write_bytes(b"x")
    said = planned(capsys, "build", str(dist), ROCM, code=WheelSetError.exit_code)
    assert "differ from wheels.json" in said


def test_test_dry_run_shows_container(capsys: pytest.CaptureFixture[str]) -> None:
    told = planned(capsys, "test", "mine:1", "--platform=cpu")
    assert "$ docker pull mine:1\n" in told
    assert told.endswith(
        f"--entrypoint /opt/python/PYTHON/bin/python3 mine:1 {SELFTEST} --no-gpu\n"
    )
    told = planned(capsys, "test", "mine:1", "--platform=cpu", "--test-cmd=true")
    assert told.endswith("--entrypoint bash mine:1 -c true\n")


def all_images(builder: ImageBuilder, dist: Path) -> list[ImageBuild]:
    """Return the inputs of every Dockerfile."""
    builder.rocm = dict.fromkeys(
        ("REPOSITORY", "GRAPHICS", "KEY", "FINGERPRINT", "PACKAGES"), "x"
    )
    builder.dry_run = True
    runtime = runtime_image(builder, dist, read_set(dist), "ubu24", ("3.12",), dist)
    return [*builder_images(builder), runtime]


def test_dockerfiles_declare_every_argument(
    image_builder: ImageBuilder, dist: Path
) -> None:
    """Engines only warn about an argument that a Dockerfile does not declare."""
    images = all_images(image_builder, dist)
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
    image_builder: ImageBuilder, dist: Path
) -> None:
    for image in all_images(image_builder, dist):
        context = [*image.texts, *image.files, *image.downloads]
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
        ({"builder_image": SEARCH}, "no registry is configured"),
        ({"builder_image": "absent:1"}, "Cannot pull absent:1: no"),
        ({"builder_image": SEARCH, "registry": "a.b/c"}, "Cannot pull a.b/c/jax-many"),
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
        builder_image(image_builder)


def test_builder_image_with_tag_of_content_is_not_built(
    image_builder: ImageBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(_: ImageBuilder, name: str) -> ContainerImage:
        return ContainerImage(name=name, id="sha256:1", digests=(), labels={})

    monkeypatch.setattr(ImageBuilder, "find", find)
    monkeypatch.setattr(ImageBuilder, "build", lambda *_: pytest.fail("it is built"))
    assert builder_image(image_builder).name == builder_images(image_builder)[0].tag


def test_image_that_engine_did_not_keep_is_reported(
    image_builder: ImageBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A buildx with a driver of its own builds images that the engine does not have."""
    monkeypatch.setattr(image_builder, "find", lambda _: None)
    monkeypatch.setattr(
        image_builder.host, "run", lambda *_, **__: ProcessResult(returncode=0)
    )
    with pytest.raises(ProcessError, match="the engine does not list it"):
        image_builder.build(TOOLS, "x:1")


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


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("7.2.0", "jax-ubu24.rocm720"),
        ("7.10.0.dev0+ABC.1", "jax-ubu24.rocm7100dev0.abc.1"),
    ],
)
def test_runtime_name_has_no_plus(version: str, name: str) -> None:
    assert runtime_name("ubu24", version) == name


def test_pins_option_of_unreadable_file_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "cannot be read" in planned(
        capsys, "build", "--pins=absent.toml", code=FormatError.exit_code
    )


def test_pip_packages_of_image_have_targets_of_set(
    image_builder: ImageBuilder,
) -> None:
    index = "https://host/simple/"
    settings = Settings({"therock_index_url": index, "rocm_version": "7.14.0"})
    made = wheel_set(targets=("gfx942", "gfx1151"))
    rocm = find_image_rocm(settings, Reporter(terminal=False), image_builder, made)
    assert rocm is not None
    assert rocm.source == PipIndex(url=canonical(index))
    assert rocm.targets == expand("gfx942,gfx1151")
