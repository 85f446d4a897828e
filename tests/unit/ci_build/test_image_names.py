"""Names of images: every input of an image is part of its name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci_build.cli.commands.image_build import names_rocm
from ci_build.cli.options.settings import Settings
from ci_build.images.engine_images import check_name, is_loopback
from ci_build.images.image_builder import ImageBuilder
from ci_build.images.image_contents import read_commits
from ci_build.images.image_recipe import (
    BaseImage,
    ContextFile,
    Recipe,
    text_file,
)
from core.errors import InputError, ProcessError, RequestError
from tests.support.tiny_wheel import make_wheel


def source() -> Path:
    raise AssertionError("nobody needs it")


RECIPE = Recipe(
    name="jax-x",
    dockerfile="ARG BASE\nFROM ${BASE}\n",
    base=BaseImage(
        identity="a.b/b@sha256:" + "1" * 64,
        image=str,
        tag="base:1",
        reference="mirror.example/b@sha256:" + "1" * 64,
    ),
    files={
        "a": ContextFile(digest="1", source=source),
        "downloads/b": ContextFile(
            digest="2", source=source, url="https://host.invalid/b"
        ),
    },
    arguments={"A": "b"},
    labels={"c": "d"},
)
CHANGES: dict[str, Any] = {
    "dockerfile": "ARG BASE\nFROM ${BASE}",
    "base": BaseImage(identity="a/b@sha256:" + "2" * 64, image=str),
    "files": {"a": ContextFile(digest="2", source=source)},
    "arguments": {"A": "c"},
    "labels": {"c": "e"},
}


@pytest.mark.parametrize("name", CHANGES)
def test_recipe_with_other_content_has_another_digest(name: str) -> None:
    assert replace(RECIPE, **{name: CHANGES[name]}).tag != RECIPE.tag


def test_recipe_digest_covers_mode_and_path(image_builder: ImageBuilder) -> None:
    for files in (
        {"b": RECIPE.files["a"]},
        {"a": replace(RECIPE.files["a"], executable=True)},
    ):
        assert replace(RECIPE, files=files).content != RECIPE.content
    made = image_builder.generated("text")
    assert text_file(made.source()).digest == made.digest


@pytest.mark.parametrize("served", [b"content", b"another content"])
def test_damaged_part_is_fetched_again_before_the_server_is_blamed(
    image_builder: ImageBuilder, monkeypatch: pytest.MonkeyPatch, served: bytes
) -> None:
    pin = replace(
        image_builder.pins.get("download", "bazel", "x86_64"),
        digest=hashlib.sha256(b"content").hexdigest(),
    )
    folder = image_builder.folder / "files" / pin.digest
    begun = list[int]()
    folder.mkdir(parents=True)
    (folder / "part").write_bytes(bytes(3))

    def chunks(
        _: ImageBuilder, __: str, sha256: Any, done: int
    ) -> Iterator[memoryview]:
        begun.append(done)
        sha256.update(served[done:])
        yield memoryview(served[done:])

    monkeypatch.setattr(ImageBuilder, "_chunks", chunks)
    fetch = image_builder.downloads({"bazel": pin})["downloads/bazel"].source
    if served == b"content":
        assert fetch().read_bytes() == served
    else:
        with pytest.raises(
            InputError, match=r"but download\.bazel\.x86_64 is pinned to"
        ):
            fetch()
        assert not (folder / "part").exists()
    assert begun == [3, 0]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("a:7.2.0+x", "Use a:7.2.0.x"),
        ("host.example:5000/b/A c:1", "Use host.example:5000/b/a.c:1"),
        ("", "Write the name"),
        ("a@sha256:" + "1" * 64, "Use a."),
    ],
)
def test_check_name_refuses_invalid_names(name: str, hint: str) -> None:
    with pytest.raises(RequestError, match="is not a valid image name") as caught:
        check_name(name, "-t")
    assert hint in caught.value.hint
    assert (
        check_name("host.example:5000/a/b-c_d.e:T_1", "-t")
        == "host.example:5000/a/b-c_d.e:T_1"
    )


def test_is_loopback_detects_loopback() -> None:
    assert all(map(is_loopback, ("127.3.2.1", "localhost:5000/x", "[::1]:5000")))
    assert not any(map(is_loopback, ("127.0.0.1.example:80", "10.0.0.1/127.0.0.1")))


def test_image_that_engine_did_not_keep_is_reported(
    image_builder: ImageBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A buildx with a driver of its own builds images that the engine does not have."""
    monkeypatch.setattr(image_builder, "find_built", lambda _: None)
    monkeypatch.setattr(image_builder, "_build", lambda *_: None)
    with pytest.raises(ProcessError, match="the engine does not list it"):
        image_builder.build(replace(RECIPE, arguments={}))


def test_read_commits_reads_all_without_running_code(tmp_path: Path) -> None:
    files = {
        "p/build_info.json": b'{"sources": {"jax": "aaa", "xla": "bbb", "empty": ""}}',
        "p/commit_info.py": b'raise SystemExit\ncommits = {"ROCm/rocm-jax": "ccc", "n": 1}\n',
        "q/commit_info.py": b"not python (",
    }
    path = make_wheel(tmp_path, files)
    assert read_commits(path) == {"jax": "aaa", "xla": "bbb", "ROCm/rocm-jax": "ccc"}


# Choice of the ROCm


@pytest.mark.parametrize(
    ("after", "environ", "expected"),
    [
        ({}, {}, False),
        ({"rocm_version": "7.10.0"}, {}, False),
        ({"therock_path": "/opt/rocm"}, {}, True),
        ({"locked": True}, {}, True),
        ({}, {"CI_BUILD_THEROCK_PATH": "/opt/rocm"}, True),
        (
            {},
            {"CI_BUILD_ROCM_BUILD_URL": "https://host/{job}", "CI_BUILD_LOCKED": "1"},
            False,
        ),
    ],
)
def test_names_rocm_needs_an_option_that_names_one(
    after: dict[str, Any], environ: dict[str, str], *, expected: bool
) -> None:
    assert names_rocm(Settings(after, {}, environ)) is expected
