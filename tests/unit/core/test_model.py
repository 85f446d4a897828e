"""The data model: target IDs, ROCm versions, and round trips of wheels.json."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import FormatError, RequestError, WheelSetError
from core.model import GfxTarget, RocmVersion, to_json
from core.wheels_json import dump_wheel_set, load_wheel_set
from core.wheelset import read_set
from tests.support.sets import rocm_packages, wheel_set


@pytest.mark.parametrize(
    "text",
    [
        "gfx942",
        "gfx90a",
        "gfx1151",
        "gfx9-generic",
        "gfx9-4-generic",
        "gfx90a:sramecc+:xnack-",
    ],
)
def test_target_id_round_trip(text: str) -> None:
    assert str(GfxTarget.parse(text)) == text


def test_features_are_sorted_like_llvm() -> None:
    assert str(GfxTarget.parse("gfx90a:xnack-:sramecc+")) == "gfx90a:sramecc+:xnack-"


@pytest.mark.parametrize(
    "text",
    ["", "sm_90", "gfx942\n", "gfx942:fast+", "gfx942:xnack", "GFX942", "gfx94x"],
)
def test_target_refuses_other_text(text: str) -> None:
    with pytest.raises(RequestError, match="is not a gfx target"):
        GfxTarget.parse(text)


@pytest.mark.parametrize("text", ["seven", "7", "", "7.2.0/../x"])
def test_rocm_version_refuses_other_text(text: str) -> None:
    with pytest.raises(RequestError, match="ROCm version"):
        RocmVersion(text=text)


ORDER = ("7.2.0", "7.10.0.dev0", "7.10.0a20251120", "7.10.0rc1", "7.10.0", "10.0.0")


@given(st.permutations(ORDER))
def test_rocm_versions_order_numbers_and_prereleases(texts: list[str]) -> None:
    versions = [RocmVersion(text=text) for text in texts]
    assert [str(version) for version in sorted(versions)] == list(ORDER)


def test_wheel_set_round_trip() -> None:
    made = wheel_set()
    assert load_wheel_set(dump_wheel_set(made)) == made


def test_set_digest_covers_every_field() -> None:
    made = wheel_set(rocm_packages=rocm_packages())
    body = to_json(made)
    text = dump_wheel_set(made)
    assert len(body) == 13
    for name, value in body.items():
        changed = json.loads(text)
        if isinstance(value, (str, list)):
            changed[name] = value[:-1]
        else:
            changed[name]["more"] = 1 if name == "file_sizes" else "1"
        with pytest.raises(WheelSetError, match="records digest"):
            load_wheel_set(json.dumps(changed))


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.pop("wheels"),
        lambda body: body.update(surprise=1),
        lambda body: body["wheels"][0].pop("sha256"),
        lambda body: body["wheels"][0].update(surprise=1),
        lambda body: body.update(wheels=None),
    ],
)
def test_wheel_set_refuses_unknown_and_missing_fields(change: Any) -> None:
    body = json.loads(dump_wheel_set(wheel_set()))
    change(body)
    with pytest.raises(FormatError):
        load_wheel_set(json.dumps(body))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"name": "left-pad", "version": "1"}', "schema: missing key"),
        (b'{"schema": 99}', "schema: expected 1, got 99"),
        (b'{"schema": 1}', "missing key index"),
        (b"", "is not JSON"),
    ],
)
def test_foreign_wheels_json_is_refused(content: bytes, said: str) -> None:
    with pytest.raises(FormatError, match=f"/x/wheels.json.*{said}"):
        load_wheel_set(content, "/x/wheels.json")


def test_wheel_set_refuses_invalid_requirements(tmp_path: Path) -> None:
    first, *others = wheel_set().wheels
    made = replace(
        wheel_set(), wheels=(replace(first, requires_dist=("jaxlib=>0.1",)), *others)
    )
    (tmp_path / "wheels.json").write_text(dump_wheel_set(made))
    with pytest.raises(
        WheelSetError, match=r"requires 'jaxlib=>0\.1', which is not a requirement"
    ):
        read_set(tmp_path)


@pytest.mark.parametrize("sizes", [{"a": 1, "b": 1}, {"a": "1"}, {}])
def test_wheel_set_refuses_sizes_of_other_files(sizes: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match="file_sizes"):
        load_wheel_set(
            dump_wheel_set(wheel_set(files={"a": "b" * 64}, file_sizes=sizes))
        )
