"""Registries in names of images, and mirrors in their place."""

from __future__ import annotations

import pytest

from ci_build.images.mirrors import full_name, has_registry, mirrored, parse_mirrors
from core.errors import RequestError

MIRRORS = parse_mirrors(
    "docker.io=m.example:5000/hub, quay.io/pypa/a=127.0.0.1:1/b,quay.io=q.example/",
    "it",
)


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("ubuntu", "docker.io/library/ubuntu"),
        ("rocm/jax:7", "docker.io/rocm/jax:7"),
        ("docker.io/ubuntu", "docker.io/library/ubuntu"),
        ("index.docker.io/rocm/jax", "docker.io/rocm/jax"),
        ("host:5000/a", "host:5000/a"),
    ],
)
def test_full_name_completes_as_docker_does(name: str, full: str) -> None:
    assert full_name(name) == full
    assert has_registry(full)
    named = has_registry(name)
    assert full_name(name, "own.example/x") == (
        full if named else f"own.example/x/{name}"
    )


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (
            "docker.io/library/ubuntu@sha256:1",
            "m.example:5000/hub/library/ubuntu@sha256:1",
        ),
        ("quay.io/pypa/a@sha256:1", "127.0.0.1:1/b@sha256:1"),
        ("quay.io/pypa/ab:tag", "q.example/pypa/ab:tag"),
        ("quay.io:443/pypa/a", "quay.io:443/pypa/a"),
        ("quay.io.example/pypa/a", "quay.io.example/pypa/a"),
    ],
)
def test_mirrored_replaces_longest_place(name: str, found: str) -> None:
    assert mirrored(name, MIRRORS) == found


@pytest.mark.parametrize(
    "text",
    ["quay.io", "pypa=host.example", "quay.io=https://host.example"],
)
def test_parse_mirrors_refuses_other_forms(text: str) -> None:
    with pytest.raises(RequestError, match="--image-mirror is invalid"):
        parse_mirrors(text, "--image-mirror")


def test_parse_mirrors_hides_password_and_refuses_two_mirrors() -> None:
    with pytest.raises(RequestError) as caught:
        parse_mirrors("quay.io=me:secret@host.example", "--image-mirror")
    assert "secret" not in str(caught.value)
    with pytest.raises(
        RequestError, match=r"two mirrors of quay\.io: a\.example and b\.example"
    ):
        parse_mirrors("quay.io=a.example,quay.io=b.example", "--image-mirror")
