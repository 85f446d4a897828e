"""Sets with a kernel wheel.

One wheel shared by sets for several JAX releases, and wheels with a version of JAX.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from promotion.evidence.evidence import record
from promotion.index.audit import verify
from promotion.promote import promote
from promotion.stage import read_staged, stage
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import StagedSet
from tests.support.made_kernels import OBJECT, OTHER, clean_kernels, tell
from tests.support.promoting import POLICY, RELEASED, go, offered, staged_in
from tests.support.wheel_sets import (
    SetWheel,
    make_set,
    make_wheels,
    passing_evidence,
    set_wheel,
    write_set,
)

OLD = "0.10.2+rocm7.2.0"
"""Version of a kernel wheel that was built for one JAX release."""


def kernels(folder: Path, version: str) -> SetWheel:
    made = clean_kernels()
    made.version = version
    made.replace("Version", version)
    tell(made, version=version)
    folder.mkdir(parents=True, exist_ok=True)
    return set_wheel(made, folder, {OBJECT: ("gfx942",), OTHER: ("gfx950",)})


def staged_with(
    bucket: DirBucket, folder: Path, version: str, kernel_wheel: SetWheel
) -> StagedSet:
    wheels = [*make_wheels(folder / "w", version=version), kernel_wheel]
    wheel_set = make_set(wheels)
    staged = stage(bucket, write_set(folder / "set", wheels, wheel_set))
    assert read_staged(bucket, staged) == wheel_set
    for evidence in passing_evidence(wheel_set):
        record(bucket, staged, evidence)
    return staged


def test_promoted_kernels_are_installed_only_if_named(
    bucket: DirBucket, tmp_path: Path
) -> None:
    """The commands and locked requirements of an index install the set without kernels."""
    wheels = [
        *make_wheels(tmp_path / "w", pythons=("3.12",)),
        kernels(tmp_path / "k", "1.0.0"),
    ]
    staged = staged_in(
        bucket,
        tmp_path / "set",
        wheels,
        lock='lock-version = "1.0"\ncreated-by = "x"\npackages = []\n',
    )
    go(bucket, staged)
    (row,) = json.loads(bucket.get(RELEASED.status))["sets"]
    assert row["install"].split()[0] == f"jax-rocm7-plugin=={OLD}"
    assert row["optional"] == "jax-aiter==1.0.0"
    assert "aiter" not in row["install"]
    lines = (
        bucket.get(RELEASED.set_file(staged.digest, "requirements-locked.txt"))
        .decode()
        .splitlines()
    )
    hashes = {one.wheel.name: f" --hash=sha256:{one.wheel.sha256}" for one in wheels}
    del hashes["jax-aiter"]
    assert {line.partition("=")[0] for line in lines} == {*hashes}
    assert all(line.endswith(hashes[line.partition("=")[0]]) for line in lines)


@pytest.mark.parametrize(
    "versions",
    [
        ("1.0.0", "1.0.0"),
        (OLD, "1.0.0"),
    ],
)
def test_sets_with_kernels_are_promoted_and_verified(
    bucket: DirBucket, tmp_path: Path, versions: Sequence[str]
) -> None:
    # The sets are for JAX 0.10.2 and 0.12.0.
    for number, (jax, version) in enumerate(
        zip((OLD, "0.12.0+rocm7.2.0"), versions, strict=False)
    ):
        folder = tmp_path / str(number)
        staged = staged_with(bucket, folder, jax, kernels(folder / "k", version))
        # Without allow_lower: no version of the kernel wheel may hide another wheel.
        promote(bucket, staged, POLICY)
    assert list(verify(bucket, RELEASED, read=True)) == []
    visible = {name for name in offered(bucket) if name.startswith("jax_aiter")}
    assert visible == {
        f"jax_aiter-{version}-py3-none-manylinux_2_28_x86_64.whl"
        for version in versions
    }
