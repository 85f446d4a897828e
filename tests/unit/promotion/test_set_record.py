"""wheels.json compared with the wheels: each false value is named, and true records have no finding."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.model import InputFile, WheelSet
from promotion.gates.set_record import (
    file_differences,
    set_differences,
    url_differences,
)
from tests.support.made_wheel import with_sections
from tests.support.wheel_sets import (
    PLUGIN_LIBRARIES,
    make_set,
    make_wheels,
    plugin,
)
from tests.unit.core.test_rocm_releases import C849, ROCM_LLVM
from tests.unit.gate_table.inspection_sets import VERSION, built, compare_record, record
from wheelkit.inspect.inspect import inspect_wheel

RECORD = record()


def problems(wheel_set: WheelSet) -> list[str]:
    """Return the messages about another record of the same wheels."""
    return [item.message for item in compare_record(replace(RECORD, wheel_set=wheel_set))]


def test_adopted_wheel_is_its_own_source() -> None:
    """Its build information has the source of the build before."""
    own = tuple(replace(wheel, source_sha256=wheel.sha256, source_size=wheel.size) for wheel in RECORD.wheel_set.wheels)
    assert problems(replace(RECORD.wheel_set, wheels=own, inputs=())) == []


def test_compiler_contradicts_rocm_of_set(tmp_path: Path) -> None:
    made = built(plugin(VERSION), "jax_rocm7_plugin")
    mark = (".comment", 1, 0x30, f"{ROCM_LLVM}{C849})\0".encode())
    made.files[PLUGIN_LIBRARIES[0]] = with_sections(made.files[PLUGIN_LIBRARIES[0]], mark)
    reports = [RECORD.reports[0], inspect_wheel(made.write(tmp_path)), *RECORD.reports[2:]]
    infos = [{}, *RECORD.infos[1:]]
    (found,) = set_differences(RECORD.wheel_set, reports, infos)
    assert f"it is 7.2.0, but {PLUGIN_LIBRARIES[0]} in jax_rocm7_plugin-" in found.message
    assert found.message.endswith("was compiled by the clang of ROCm 7.12.0.")
    for rocm in ("7.12.0", "7.13.0a20260314"):
        infos = [{**info, "rocm_version": rocm} if info else {} for info in RECORD.infos]
        assert [*set_differences(replace(RECORD.wheel_set, rocm_version=rocm), reports, infos)] == []


@pytest.mark.parametrize(
    ("files", "source", "stamp", "message"),
    [
        ({"rocm.lock": "7" * 64}, {"rocm": "7" * 64}, "7" * 64, ""),
        ({"rocm.lock": "7" * 64}, {"rocm": "8" * 64}, "7" * 64, f"{'7' * 64}, but wheels.json was made with a ROCm"),
        ({"rocm.lock": "7" * 64}, None, "7" * 64, "but wheels.json was made"),
        ({"rocm.lock": "7" * 64}, {"rocm": "7" * 64}, "8" * 64, "but jax_rocm7_pjrt-"),
        ({"rocm.lock": "7" * 64}, {"rocm": "7" * 64}, None, "but jax_rocm7_pjrt-"),
    ],
)
def test_false_lock_is_named(
    files: Mapping[str, str], source: Mapping[str, str] | None, stamp: str | None, message: str
) -> None:
    infos = [{**info, "sources": {"rocm": stamp}} if info and stamp else info for info in RECORD.infos]
    wheel_set = replace(RECORD.wheel_set, files=files, request={**RECORD.wheel_set.request, "source": source})
    found = [item.message for item in set_differences(wheel_set, RECORD.reports, infos)]
    if not message:
        assert found == []
    else:
        assert found[0].startswith("wheels.json is wrong about rocm.lock: its sha256 is 777")
        assert message in found[0]


def test_wheel_that_is_not_the_file_of_its_url_is_named(tmp_path: Path) -> None:
    path = tmp_path / "jaxlib.whl"
    path.write_bytes(b"content")
    (like,) = (one.wheel for one in make_wheels(tmp_path, pythons=("3.12",)) if one.wheel.name == "jaxlib")
    wheel = replace(like, sha256="1" * 64, source_sha256="1" * 64)

    def found(digest: str, **changes: Any) -> list[str]:
        url = f"https://files.invalid/packages/{digest[:2]}/{digest[2:4]}/{digest[4:]}/jaxlib.whl"
        item = InputFile(filename="jaxlib.whl", size=7, sha256="1" * 64, url=url)
        held = make_set([], inputs=(item,))
        return [item.message for item in url_differences(held, replace(wheel, **changes), path)]

    digest = hashlib.blake2b(b"content", digest_size=32).hexdigest()
    assert found(digest) == []
    (text,) = found(digest[::-1])
    assert text.startswith(f"{wheel.filename} is not the file of its URL https://")
    assert found("another-place") == []
    assert found(digest[::-1], source_sha256="2" * 64) == []  # made of the file


LOCK = """[[packages]]
name = "jax"
version = "{jax}"
[[packages.wheels]]
name = "jax-{jax}-py3-none-any.whl"
hashes = {{sha256 = "1"}}
[[packages]]
name = "jax-rocm7-pjrt"
version = "1"
[[packages.wheels]]
name = "jax_rocm7_pjrt-1-py3-none-any.whl"
hashes = {{sha256 = "{sha256}"}}
"""
BILL = (
    '{{"components": [{{"name": "jax", "version": "{jax}", "bom-ref": "jax-{jax}-py3-none-any.whl"}}, '
    '{{"name": "jax-rocm7-pjrt", "version": "1", "bom-ref": "jax_rocm7_pjrt-1-py3-none-any.whl", '
    '"hashes": [{{"alg": "SHA-256", "content": "{sha256}"}}]}}]}}'
)
GOOD = {"jax": "0.10.2", "sha256": "a"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("constraints.txt", "jax==0.10.2\njax-rocm7-pjrt==1\n"),
        ("pylock.toml", LOCK.format(**GOOD)),
        ("sbom.cdx.json", BILL.format(**GOOD)),
    ],
)
def test_file_differences_accepts_true_file(name: str, text: str) -> None:
    wheel = replace(
        RECORD.wheel_set.wheels[0],
        name="jax-rocm7-pjrt",
        version="1",
        filename="jax_rocm7_pjrt-1-py3-none-any.whl",
        sha256="a",
    )
    made = replace(RECORD.wheel_set, wheels=(wheel,), pins={"jax": "0.10.2"}, files={name: "5" * 64})
    assert list(file_differences(made, {name: text.encode()}.__getitem__)) == []


def test_downloaded_wheels_are_not_from_source() -> None:
    made = replace(RECORD.wheel_set, request={"payload": "source"})
    assert problems(made) == []
    made = replace(made, inputs=tuple(replace(item, url="https://example.org/x.whl") for item in made.inputs))
    found = [text for text in problems(made) if "about request" in text]
    assert len(found) == 2, "not for jaxlib"
    assert "its payload is source, but jax_rocm7_pjrt-" in found[0]
    assert problems(replace(made, request={"payload": "published"})) == []
