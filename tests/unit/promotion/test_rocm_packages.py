"""Wheels of ROCm on the pages and in the ledger of an index, which does not store them."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from core.errors import PromotionBlockedError, WheelSetError
from promotion import stage
from promotion.index.audit import repair, verify
from promotion.index.ledger_state import EntryKind
from promotion.index.operations import mark
from promotion.index.pages import project_html, project_json
from promotion.index.retention import RetentionRule, apply
from promotion.index.rocm_packages import package_problems, rocm_row
from promotion.promote import install_line
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import StagedSet
from tests.support.promoting import NOW, RELEASED, go, objects, offered, staged_in
from tests.support.sets import rocm_packages, wheel_set
from tests.support.wheel_sets import make_set, make_wheels

CORE, *_ = rocm_packages()
BOTH = (*rocm_packages(), *rocm_packages(gpu="gfx950")[2:])
"""Wheels of ROCm for both GPUs of `make_wheels`."""


def staged_with(
    bucket: DirBucket, folder: Path, minor: int, server: str = "https://rocm.test/"
) -> StagedSet:
    """Stage a set for ROCm 7.MINOR, whose ROCm has wheels."""
    wheels = make_wheels(
        folder / "w", version=f"0.10.2+rocm7.{minor}.0", pythons=("3.12",)
    )
    packages = rocm_packages(server=server)
    return staged_in(bucket, folder / "sets", wheels, rocm_packages=packages)


def test_index_lists_rocm_by_address_and_stores_nothing_of_it(
    bucket: DirBucket, tmp_path: Path
) -> None:
    staged = staged_with(bucket, tmp_path, 2)
    page = json.loads(bucket.get(f"{staged.simple}rocm-sdk-core/index.json"))
    assert page["files"][0]["url"] == f"https://rocm.test/{CORE.filename}"
    done = go(bucket, staged)
    assert done.promoted.rocm_packages == rocm_packages(server="https://rocm.test/")
    file = offered(bucket)[CORE.filename]
    assert file["url"] == f"https://rocm.test/{CORE.filename}"
    assert (file["hashes"], file["size"]) == ({"sha256": "e" * 64}, 1 << 20)
    assert "core-metadata" not in file
    assert not [key for key in objects(bucket) if key.endswith(CORE.filename)]
    assert not [*verify(bucket, RELEASED, read=True)]
    root = json.loads(bucket.get(f"{RELEASED.simple}index.json"))["projects"]
    assert {"name": "rocm-sdk-device-gfx942"} in root


def test_pages_link_to_the_server_and_omit_what_is_unknown() -> None:
    row = rocm_row(replace(CORE, size=0))
    html = project_html(CORE.project, [row]).decode()
    assert f'href="{CORE.url}#sha256={CORE.sha256}"' in html
    assert "data-core-metadata" not in html
    assert "size" not in project_json(CORE.project, [row])["files"][0]


def test_file_of_two_sets_has_one_row_until_both_are_gone(
    bucket: DirBucket, tmp_path: Path
) -> None:
    for minor, server in ((2, "https://rocm.test/"), (3, "https://new.test/")):
        go(bucket, staged_with(bucket, tmp_path, minor, server))
    file = offered(bucket)[CORE.filename]
    assert file["_sets"] == [1, 2]
    assert file["url"] == f"https://new.test/{CORE.filename}"

    def change(kind: EntryKind, name: str) -> None:
        mark(
            bucket,
            RELEASED,
            kind,
            [name],
            reason="bad",
            now=lambda: NOW,
        )

    change(EntryKind.QUARANTINE, "2")
    assert offered(bucket)[CORE.filename]["url"] == f"https://rocm.test/{CORE.filename}"
    change(EntryKind.YANK, "1")
    assert offered(bucket)[CORE.filename]["yanked"] == "bad"
    change(EntryKind.QUARANTINE, "1")
    assert CORE.filename not in offered(bucket)
    assert not [*verify(bucket, RELEASED)]


def test_retention_and_repair_leave_an_index_with_rocm_sound(
    bucket: DirBucket, tmp_path: Path
) -> None:
    go(bucket, staged_with(bucket, tmp_path, 2))
    wheels = make_wheels(tmp_path / "w", version="0.10.2+rocm7.3.0", pythons=("3.12",))
    go(bucket, staged_in(bucket, tmp_path / "sets", wheels))
    rule = RetentionRule(days=1, grace_days=1)
    clock = count(2, 2)
    for _ in range(2):
        apply(
            bucket,
            RELEASED,
            rule,
            now=lambda: NOW + timedelta(days=next(clock)),
        )
    assert CORE.filename not in offered(bucket)
    assert not [*verify(bucket, RELEASED)]
    repair(bucket, RELEASED)
    assert not [*verify(bucket, RELEASED)]


def test_promote_refuses_rocm_with_other_bytes(
    bucket: DirBucket, tmp_path: Path
) -> None:
    go(bucket, staged_with(bucket, tmp_path, 2))
    wheels = make_wheels(tmp_path / "w", version="0.10.2+rocm7.3.0", pythons=("3.12",))
    other = rocm_packages(sha256="f" * 64)
    staged = staged_in(bucket, tmp_path / "sets", wheels, rocm_packages=other)
    with pytest.raises(PromotionBlockedError) as caught:
        go(bucket, staged)
    assert f"{CORE.filename} has sha256 {'f' * 64}" in caught.value.message


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"url": "http://rocm.test/{name}"}, "not https"),
        ({"url": "https://me:secret@rocm.test/{name}"}, "has a user"),
        ({"url": "https://rocm.test/{name}?token=secret"}, "a query"),
        ({"url": "https://rocm.test/{name}#sha256=secret"}, "fragment"),
        ({"url": "https:///{name}"}, "not https"),
        ({"url": "https://[secret/{name}"}, "not https"),
        ({"url": ""}, "not https"),
        ({"url": "https://rocm.test/other.whl"}, "another file"),
        ({"sha256": "e" * 63}, "is not a wheel of ROCm"),
        ({"version": "7.13.0"}, "is not a wheel of ROCm"),
        ({"project": "rocm-sdk-libraries"}, "is not a wheel of ROCm"),
        ({"project": "jax", "filename": "jax-7.14.0-py3-none-any.whl"}, "not a wheel"),
        ({"filename": "rocm_sdk_core-7.14.0.tar.gz"}, "is not a wheel of ROCm"),
        ({"filename": "rocm_sdk_core-7.14.0-py3-none-/x.whl"}, "is not a wheel"),
        ({"version": "x", "filename": "rocm_sdk_core-x-py3-none-any.whl"}, "is not a"),
    ],
)
def test_package_problems_name_the_file(changes: dict[str, str], problem: str) -> None:
    texts: dict[str, Any] = {
        key: text.format(name=CORE.filename) for key, text in changes.items()
    }
    made = replace(CORE, **texts)
    (found,) = package_problems(wheel_set(rocm_packages=(made,)))
    assert problem in found
    assert texts.get("filename", CORE.filename) in found
    assert "secret" not in found


def test_packages_on_this_machine_may_lack_tls() -> None:
    packages = rocm_packages(server="http://127.0.0.1:8080/")
    assert not [*package_problems(wheel_set(rocm_packages=packages))]


def test_stage_refuses_a_set_that_omits_rocm_of_an_extra(
    bucket: DirBucket, tmp_path: Path
) -> None:
    wheels = make_wheels(tmp_path / "w", pythons=("3.12",), extras="7.14.0")
    message = "device-gfx950 requires rocm-sdk-device-gfx950, which wheels.json"
    with pytest.raises(WheelSetError, match=message):
        staged_in(bucket, tmp_path / "sets", wheels, rocm_packages=rocm_packages())


def test_stage_and_promote_refuse_a_url_without_tls(
    bucket: DirBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(WheelSetError, match="not https"):
        staged_with(bucket, tmp_path, 2, "http://rocm.test/")
    with monkeypatch.context() as patch:  # an older program staged it
        patch.setattr(stage, "package_problems", lambda _: ())
        staged = staged_with(bucket, tmp_path, 2, "http://rocm.test/")
    with pytest.raises(PromotionBlockedError, match="not https"):
        go(bucket, staged)


def test_promotion_writes_hash_locked_requirements_of_rocm(
    bucket: DirBucket, tmp_path: Path
) -> None:
    wheels = make_wheels(tmp_path / "w", pythons=("3.12",), extras="7.14.0")
    lock = 'lock-version = "1.0"\ncreated-by = "tests"\npackages = []\n'
    staged = staged_in(bucket, tmp_path / "sets", wheels, lock=lock, rocm_packages=BOTH)
    written = go(bucket, staged).pages
    plugin = written.index(f"{RELEASED.simple}jax-rocm7-plugin/index.html")
    for one in BOTH:
        page = f"{RELEASED.simple}{one.project}/index.html"
        assert written.index(page) < plugin, "no extra lacks its wheels"
    for gpu in ("gfx942", "gfx950"):
        name = f"requirements-device-{gpu}.txt"
        data = bucket.get(RELEASED.set_file(staged.digest, name))
        assert data.decode().splitlines() == [
            f"{one.project}==7.14.0 --hash=sha256:{'e' * 64}"
            for one in rocm_packages(gpu=gpu)
        ]
    (row,) = json.loads(bucket.get(RELEASED.status))["sets"]
    assert row["extras"] == ["device-gfx942", "device-gfx950"]
    assert row["rocm_index"] == ""


def test_install_line_installs_rocm_if_it_has_wheels(tmp_path: Path) -> None:
    wheels = make_wheels(tmp_path, pythons=("3.12",), extras="7.14.0")
    recorded = make_set(wheels, rocm_version="7.14.0", rocm_packages=rocm_packages())
    needs = (
        "'jax-rocm7-plugin[device-gfx942]==0.10.2+rocm7.2.0' jaxlib==0.10.2 jax==0.10.2"
    )
    start = "pip install --extra-index-url https://x.test/simple/"
    assert install_line(recorded, "https://x.test/simple/") == f"{start} {needs}"
    unrecorded = make_set(wheels, rocm_version="7.14.0")
    amd = "--extra-index-url https://repo.amd.com/rocm/whl-multi-arch/"
    assert (
        install_line(unrecorded, "https://x.test/simple/") == f"{start} {amd} {needs}"
    )
