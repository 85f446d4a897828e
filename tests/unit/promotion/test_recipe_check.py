"""Comparison with recorded recipes.

Each difference is named, and wheels of other versions are left out.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from ci_build.rocm.lock import dump_lock
from ci_build.rocm.set_lock import set_lock
from ci_build.wheelset.set_files import write_set
from core.errors import BucketError
from core.model import (
    PYLOCK,
    ROCM_LOCK,
    SHA256SUMS,
    Severity,
)
from tests.support.sets import wheel_set
from tests.unit.ci_build.test_set_files import JAX
from tests.unit.ci_build.test_set_lock import LOCK
from tests.unit.gate_table.inspection_recipes import (
    INFO,
    LOADER,
    PLAN,
    check,
    files_findings,
    made_wheel,
    program,
    written_set,
)
from wheelkit import recipe_base
from wheelkit.repair.metadata import render_entry_points, rewrite_metadata


def test_wheel_of_another_version_is_not_compared(tmp_path: Path) -> None:
    made = made_wheel()
    info = json.loads(made.files[INFO])
    made.files[INFO] = json.dumps({**info, "recipe": "0" * 64}).encode()
    made.files[f"{LOADER}/_register.py"] += b"\n"
    (note,) = check(made, tmp_path)
    assert note.code == "recipe-other"
    assert note.severity == Severity.NOTE


def test_wheel_of_another_program_is_not_compared(tmp_path: Path) -> None:
    made = made_wheel()
    made.files.pop(INFO)
    made.replace("Generator", "setuptools")
    made.modes[f"{LOADER}/_gpus.py"] = 0o666
    assert check(made, tmp_path) == []


def test_other_texts_need_another_format() -> None:
    """An earlier program's wheels of the same format are compared with these texts."""
    raw = (
        b"Metadata-Version: 2.4\nName: jax-rocm7-pjrt\nVersion: 0.10.2\nRequires-Dist:"
        b" jaxlib\n\nText\n"
    )
    assert PLAN.entry_points is not None
    texts = [
        rewrite_metadata(raw, PLAN).decode(),
        render_entry_points(PLAN.entry_points).decode(),
    ]
    made = json.dumps([*texts, sorted(PLAN.build_info), sorted(PLAN.runpath)])
    found = (recipe_base._FORMAT, hashlib.sha256(made.encode()).hexdigest())
    assert found == (
        3,
        "d9eb86c1d21facfd3bc853759adc5d898dd83032283edba3be488e3292401739",
    ), "raise _FORMAT in wheelkit/recipe_base.py and record its digest"


@pytest.mark.parametrize("unreadable", [PYLOCK, SHA256SUMS])
def test_unreadable_bucket_is_no_difference(tmp_path: Path, unreadable: str) -> None:
    written = written_set(tmp_path)

    def read(name: str) -> bytes:
        if name == unreadable:
            raise BucketError("S3 did not answer.")
        return (written.folder / name).read_bytes()

    with pytest.raises(BucketError):
        list(files_findings(written.wheel_set, read))


def test_files_of_another_version_are_not_compared(tmp_path: Path) -> None:
    written = written_set(tmp_path)
    other = replace(
        written.wheel_set,
        tools={**written.wheel_set.tools, "ci_build": "another version"},
    )
    assert list(files_findings(other, lambda name: b"changed")) == []


def test_set_of_source_build_needs_its_lock(tmp_path: Path) -> None:
    written = written_set(tmp_path)
    held = replace(written.wheel_set, request={"source": {"rocm": "1" * 64}})
    (found,) = files_findings(held, lambda name: (written.folder / name).read_bytes())
    assert f"{ROCM_LOCK} is missing" in found.message


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (set_lock(LOCK), ""),
        (
            dump_lock(replace(LOCK, source="/home/me/rocm.tar.gz")).encode(),
            "not 'source = \"rocm.tar.gz\"'",
        ),
    ],
)
def test_lock_of_source_build_is_checked(
    tmp_path: Path, data: bytes, text: str
) -> None:
    (tmp_path / ROCM_LOCK).write_bytes(data)
    tools = {**wheel_set().tools, "ci_build": program()}
    request = {"payload": "source", "source": {"rocm": "1" * 64}}
    # Writing the bill of materials needs a valid lock.
    resolved = {"3.11": (JAX,), "3.12": (JAX,)} if not text else None
    held = write_set(
        tmp_path, replace(wheel_set(), tools=tools, request=request), resolved
    )
    found = [
        item.message
        for item in files_findings(held, lambda name: (tmp_path / name).read_bytes())
    ]
    assert len(found) == bool(text)
    assert all(text in message for message in found), found
