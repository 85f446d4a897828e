"""Known releases of jax, and the release of a build that names none."""

import pytest

from ci_build.wheelset.jax_releases import complete_release, default_release
from core.errors import RequestError
from core.model import Payload


@pytest.mark.parametrize(
    ("text", "payload", "release"),
    [
        ("0.12", Payload.PUBLISHED, "0.12.0.1"),
        ("0.12", Payload.SOURCE, "0.12.0.1"),
        # The published wheels of 0.11.2 contradict each other.
        ("0.11", Payload.PUBLISHED, "0.11.1"),
        ("0.11", Payload.SOURCE, "0.11.2"),
        ("0.12.0", Payload.SOURCE, "0.12.0"),
        ("0.12rc1", Payload.SOURCE, "0.12rc1"),
    ],
)
def test_complete_release_takes_newest_of_minor(
    text: str, payload: Payload, release: str
) -> None:
    assert complete_release(text, payload) == release


def test_complete_release_refuses_unknown_minor() -> None:
    with pytest.raises(RequestError, match=r"jax 0\.99 is known"):
        complete_release("0.99", Payload.SOURCE)


@pytest.mark.parametrize(
    ("payload", "pythons", "rocm", "release"),
    [
        (Payload.PUBLISHED, ("3.11",), "", "0.10.2"),
        (Payload.PUBLISHED, ("3.12", "3.14"), "", "0.12.0.1"),
        (Payload.SOURCE, ("3.12",), "10.1.0", "0.12.0.1"),
        (Payload.SOURCE, ("3.12",), "7.12.0", "0.11.1"),
        (Payload.SOURCE, ("3.12",), "7.10.0a20251120", "0.10.2"),
        (Payload.SOURCE, ("3.12",), "6.4.0", "0.12.0.1"),
    ],
)
def test_default_release_supports_pythons_and_rocm(
    payload: Payload, pythons: tuple[str, ...], rocm: str, release: str
) -> None:
    assert default_release(payload, pythons, rocm)[0] == release
