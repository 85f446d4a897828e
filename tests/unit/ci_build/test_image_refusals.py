"""Images that are missing, cannot be built, or differ from the recipe or the set."""

from __future__ import annotations

from typing import Any

import pytest

from ci_build.containers.engine import Engine
from ci_build.images.engine_images import ContainerImage
from ci_build.images.image_builder import ImageBuilder
from ci_build.images.image_recipe import BaseImage
from ci_build.images.manylinux_image import SEARCH, builder_image
from ci_build.images.runtime import check_base, find_base
from core.errors import InputError, NoContainerEngineError, RequestError


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        (
            {"engine": Engine(program="docker", builds=False)},
            NoContainerEngineError,
            "buildx",
        ),
        ({"builder_image": SEARCH}, InputError, "no registry is configured"),
        (
            {"builder_image": SEARCH, "registry": "a.b/c"},
            InputError,
            "was not built from the current",
        ),
    ],
)
def test_missing_builder_image_is_refused(
    image_builder: ImageBuilder,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    error: type[Exception],
    said: str,
) -> None:
    other = ContainerImage(
        name="a.b/c/other:1", id="sha256:" + "1" * 64, digests=(), labels={}
    )
    for name, value in changes.items():
        setattr(image_builder, name, value)
    monkeypatch.setattr(image_builder, "find_built", lambda _: None)
    monkeypatch.setattr(image_builder, "pull_built", lambda _: other)
    with pytest.raises(error, match=said):
        builder_image(image_builder)


def test_missing_base_image_is_refused(
    image_builder: ImageBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_builder, "find", lambda _: None)
    with pytest.raises(InputError, match="no image jax-base-ubu24"):
        find_base(image_builder, "jax-base-ubu24.rocm720")


@pytest.mark.parametrize(
    ("rocm", "pythons", "said"),
    [
        ("7.1.0", ("3.12",), "has ROCm 7.2.0"),
        ("7.2.0", ("3.12", "3.13"), "has no Python 3.13"),
    ],
)
def test_base_image_of_another_set_is_refused(
    rocm: str, pythons: tuple[str, ...], said: str
) -> None:
    labels = {"com.amdgpu.rocm_version": "7.2.0", "com.amdgpu.python_versions": "3.12"}
    base = BaseImage(name="base", identity="1", image=str, labels=labels)
    check_base(base, "7.2.0", ("3.12",))
    with pytest.raises(RequestError, match=said):
        check_base(base, rocm, pythons)
