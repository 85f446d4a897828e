"""Comparison with recorded recipes: each difference is named, and wheels of other versions are left out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci_build.build.expected import files_of_set, this_program
from ci_build.build.set_files import write_set
from ci_build.rocm.lock import dump_lock
from ci_build.rocm.set_lock import set_lock
from core.errors import BucketError
from core.model import (
    PYLOCK,
    ROCM_LOCK,
    SBOM,
    SHA256SUMS,
    BuildRequest,
    Finding,
    GfxTarget,
    MemberInfo,
    Payload,
    RocmVersion,
    Severity,
    WheelSet,
    to_json,
)
from pjrt import recipe
from promotion.gates.recipe_check import SetWriter, check_files, check_wheel, differences_of
from promotion.gates.set_record import malformed_values, read_build_info
from tests.support.made_wheel import MadeWheel
from tests.support.sets import wheel_set
from tests.unit.ci_build.test_set_files import JAX, NUMPY_311, NUMPY_312
from tests.unit.ci_build.test_set_lock import LOCK
from wheelkit import recipe_base
from wheelkit.archive.filename import WheelName
from wheelkit.archive.reader import WheelArchive
from wheelkit.repair.metadata import render_entry_points, rewrite_metadata, rewrite_wheel

VERSION = "0.10.2+rocm7.2.0.gfx942"
LOADER = "jax_plugins/xla_rocm7"
REQUEST = BuildRequest(
    payload=Payload.PUBLISHED,
    jax_version="0.10.2",
    rocm_version=RocmVersion(text="7.2.0"),
    python_versions=("3.12",),
    targets=(GfxTarget.parse("gfx942"),),
)
MEMBER = MemberInfo(
    path=f"{LOADER}/xla_rocm_plugin.so", size=3, sha256="4" * 64, targets=("gfx942",), needed=(), symbol_versions={}
)


@pytest.fixture(scope="module")
def program() -> SetWriter:
    return this_program()


def made_wheel() -> MadeWheel:
    """Return a pjrt wheel as this program writes it, with another library."""
    plan = recipe.repair_plan(REQUEST, VERSION)
    made = MadeWheel(project="jax_rocm7_pjrt", version=VERSION)
    info = {**plan.build_info, "members": to_json((MEMBER,)), "inputs": [], "tools": {"isal": "1"}}
    made.files = {**plan.files, MEMBER.path: b"lib", plan.build_info_path: json.dumps(info).encode()}
    assert plan.entry_points is not None
    made.info = {
        "entry_points.txt": render_entry_points(plan.entry_points),
        "top_level.txt": b"jax_plugins\n",
        "licenses/LICENSE.txt": plan.license_text,
    }
    metadata = rewrite_metadata(b"Metadata-Version: 2.4\nName: jax-rocm7-pjrt\nVersion: 1\n\n", plan)
    made.metadata = metadata.decode().rstrip("\n").split("\n")
    head = b"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: false\n"
    made.wheel = (
        rewrite_wheel(head, tags=WheelName.parse(made.filename).tags, build="").decode().rstrip("\n").split("\n")
    )
    return made


def findings(made: MadeWheel, folder: Path, program: SetWriter, **fields: Any) -> list[Finding]:
    path = made.write(folder)
    (like,) = (wheel for wheel in wheel_set().wheels if wheel.name == "jax-rocm7-pjrt")
    wheel = replace(like, filename=path.name, version=VERSION, members=(MEMBER,))
    held = replace(
        wheel_set(), **{"request": {}, "tools": {"ci_build": "0", "isal": "1"}, "wheels": (wheel,), **fields}
    )
    with WheelArchive(path) as archive:
        return [*check_wheel(archive, (), wheel, held, read_build_info(path), program)]


def test_own_wheel_has_no_difference(tmp_path: Path, program: SetWriter) -> None:
    assert findings(made_wheel(), tmp_path, program) == []
    request = {"payload": "published", "strip": True, "targets": ["gfx942"]}
    assert findings(made_wheel(), tmp_path, program, request=request) == []


def edited(name: str, old: bytes, new: bytes) -> Callable[[MadeWheel], None]:
    def edit(made: MadeWheel) -> None:
        files = made.files if name in made.files else made.info
        assert old in files[name]
        files[name] = files[name].replace(old, new)

    return edit


def informed(**values: Any) -> Callable[[MadeWheel], None]:
    def edit(made: MadeWheel) -> None:
        info = json.loads(made.files[f"{LOADER}/build_info.json"])
        made.files[f"{LOADER}/build_info.json"] = json.dumps({**info, **values}).encode()

    return edit


@pytest.mark.parametrize(
    ("edit", "code", "text"),
    [
        (edited(f"{LOADER}/_register.py", b"= 500", b"= 5"), "payload-differs", "= 5', not 'PRIORITY = 500'"),
        (edited(f"{LOADER}/version.py", b"\n", b"\r\n"), "payload-differs", "line 1 is"),
        (lambda made: made.files.pop(f"{LOADER}/_gpus.py"), "payload-differs", "_gpus.py is not what"),
        (lambda made: made.files.update({f"{LOADER}/x.py": b""}), "payload-differs", "x.py is additional"),
        (lambda made: made.info.update({"notes.txt": b""}), "payload-differs", "notes.txt is additional"),
        (edited("licenses/LICENSE.txt", b"Apache", b"Other"), "payload-differs", "LICENSE.txt is not what"),
        (edited("entry_points.txt", b"[jax", b"\n[jax"), "payload-differs", "entry_points.txt is not what"),
        (edited("top_level.txt", b"jax_plugins", b"jax"), "payload-differs", "is 'jax', not 'jax_plugins'"),
        (lambda made: made.replace("Summary", "ROCm 7.2.0"), "metadata-differs", "'Summary: ROCm 7.2.0'"),
        (lambda made: made.replace("Dynamic", "platform"), "metadata-differs", "'Dynamic: platform'"),
        (lambda made: made.replace("Generator", "x"), "metadata-differs", "WHEEL is not what"),
        (informed(covers={}), "build-info-differs", "covers.gfx10-1-generic is missing"),
        (informed(more=1), "build-info-differs", "more is additional"),
        (informed(stripped=False), "build-info-differs", "stripped is False, not True"),
        (informed(tools={"isal": "2"}), "build-info-differs", "tools.isal is '2', not '1'"),
        (informed(members=[{**to_json(MEMBER), "size": 4}]), "build-info-differs", "members[0].size is 4, not 3"),
        (informed(requested_targets="x"), "build-info-differs", "no recipe writes its build_info.json"),
        (lambda made: made.files.pop(f"{LOADER}/build_info.json"), "build-info-differs", "no recipe writes"),
        (lambda made: made.modes.update({MEMBER.path: 0o666}), "archive-not-canonical", f"({MEMBER.path})"),
    ],
)  # fmt: skip
def test_difference_is_named(
    tmp_path: Path, program: SetWriter, edit: Callable[[MadeWheel], object], code: str, text: str
) -> None:
    made = made_wheel()
    edit(made)
    request = {"payload": "published", "strip": True, "targets": ["gfx942"]}
    found = findings(made, tmp_path, program, request=request)
    assert any(item.code == code and text in item.message and item.severity is Severity.ERROR for item in found), found


def test_wheel_of_another_version_is_not_compared(tmp_path: Path, program: SetWriter) -> None:
    made = made_wheel()
    informed(recipe="0" * 64)(made)
    made.files[f"{LOADER}/_register.py"] += b"\n"
    (note,) = findings(made, tmp_path, program)
    assert (note.code, note.severity) == ("recipe-other", Severity.NOTE)
    # The set says that this program made it.
    found = findings(made, tmp_path, program, tools={"ci_build": program.digest, "isal": "1"})
    assert {item.code for item in found} == {"payload-differs", "build-info-differs"}
    assert any("recipe is '000" in item.message for item in found)


def test_wheel_of_another_program_is_not_compared(tmp_path: Path, program: SetWriter) -> None:
    made = made_wheel()
    made.files.pop(f"{LOADER}/build_info.json")
    made.replace("Generator", "setuptools")
    made.modes[f"{LOADER}/_gpus.py"] = 0o666
    assert findings(made, tmp_path, program) == []


def test_differences_of_names_path_and_type() -> None:
    old, new = {"a": [{"b": 1}], "c": 1, "d": 1}, {"a": [{"b": 2}], "c": True, "e": 1}
    assert [*differences_of(old, new)] == [
        "a[0].b is 1, not 2", "c is 1, not True", "d is additional", "e is missing",
    ]  # fmt: skip
    assert [*differences_of([1], [])] == ["the value is [1], not []"]


def test_other_texts_need_another_format() -> None:
    """Wheels of an earlier program with the same format and payload are compared with these texts."""
    plan = recipe.repair_plan(REQUEST, VERSION)
    raw = b"Metadata-Version: 2.4\nName: jax-rocm7-pjrt\nVersion: 0.10.2\nRequires-Dist: jaxlib\n\nText\n"
    assert plan.entry_points is not None
    texts = [rewrite_metadata(raw, plan).decode(), render_entry_points(plan.entry_points).decode()]
    made = json.dumps([*texts, sorted(plan.build_info), sorted(plan.runpath)])
    found = (recipe_base._FORMAT, hashlib.sha256(made.encode()).hexdigest())
    assert found == (1, "8097da4f859c431bb7cb4066ec10d8d0d78c5e8e00a8e9d7a3e77b10e9933422"), (
        "raise _FORMAT in wheelkit/recipe_base.py and record its digest"
    )


@pytest.fixture
def written(tmp_path: Path, program: SetWriter) -> tuple[Path, WheelSet]:
    resolved = {"3.11": (JAX, NUMPY_311), "3.12": (JAX, NUMPY_312)}
    tools = {**wheel_set().tools, "ci_build": program.digest}
    return tmp_path, write_set(tmp_path, replace(wheel_set(), tools=tools), resolved)


def test_files_of_own_set_have_no_difference(written: tuple[Path, WheelSet], program: SetWriter) -> None:
    folder, held = written
    texts = files_of_set(held, lambda name: (folder / name).read_bytes())
    assert {name: (folder / name).read_text() for name in texts} == texts
    assert [*check_files(held, lambda name: (folder / name).read_bytes(), program)] == []


@pytest.mark.parametrize("unreadable", [PYLOCK, SHA256SUMS])
def test_unreadable_bucket_is_no_difference(
    written: tuple[Path, WheelSet], program: SetWriter, unreadable: str
) -> None:
    folder, held = written

    def read(name: str) -> bytes:
        if name == unreadable:
            raise BucketError("S3 did not answer.")
        return (folder / name).read_bytes()

    with pytest.raises(BucketError):
        list(check_files(held, read, program))


@pytest.mark.parametrize(
    ("name", "old", "new", "text"),
    [
        (PYLOCK, 'created-by = "', 'created-by = "x', "created-by is 'x"),
        (PYLOCK, "size = ", "size = 1", "packages[1].wheels[0].size is"),
        (PYLOCK, 'requires-python = ">=3.11"', 'requires-python = ">=3.10"', "requires-python is '>=3.10'"),
        (PYLOCK, "/numpy-2.0-cp312", "/numpy-2.1-cp312", "is not a wheel of numpy 2.0"),
        (PYLOCK, "e" * 64, "d" * 64, f"{SBOM} of the set is not what its wheels and wheels.json give"),
        (PYLOCK, "lock-version", "lock-versions", "lock-version"),
        (SBOM, '"pkg:pypi/numpy@2.0', '"pkg:pypi/numpy@2.1', "purl is 'pkg:pypi/numpy@2.1"),
        (SBOM, '"dependsOn"', '"depends"', ".dependsOn is missing"),
        (SHA256SUMS, "constraints.txt", "constraint.txt", "line 1 is"),
    ],
)
def test_difference_of_file_is_named(
    written: tuple[Path, WheelSet], program: SetWriter, name: str, old: str, new: str, text: str
) -> None:
    folder, held = written
    before = (folder / name).read_text()
    assert old in before
    (folder / name).write_text(before.replace(old, new))
    found = [*check_files(held, lambda name: (folder / name).read_bytes(), program)]
    assert {item.code for item in found} == {"set-file-untrue"}
    assert any(text in item.message for item in found), found
    other = replace(held, tools={**held.tools, "ci_build": "another version"})
    assert [*check_files(other, lambda name: (folder / name).read_bytes(), program)] == []


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (set_lock(LOCK), ""),
        (dump_lock(replace(LOCK, source="/home/me/rocm.tar.gz")).encode(), "not 'source = \"rocm.tar.gz\"'"),
        (dump_lock(replace(LOCK, source="https://host/rocm.tar.gz?token=x")).encode(), "rocm.lock of the set is not"),
        (b"schema = 1", "cannot be written again: InputError: rocm.lock is not a lock"),
        (None, "cannot be written again: ValueError: rocm.lock is missing"),
    ],
)
def test_lock_of_source_build_is_checked(tmp_path: Path, program: SetWriter, data: bytes | None, text: str) -> None:
    if data is not None:
        (tmp_path / ROCM_LOCK).write_bytes(data)
    tools = {**wheel_set().tools, "ci_build": program.digest}
    request = {"payload": "source", "source": {"rocm": "1" * 64}}
    # Writing the bill of materials needs a valid lock.
    resolved = {"3.11": (JAX,), "3.12": (JAX,)} if not text else None
    held = write_set(tmp_path, replace(wheel_set(), tools=tools, request=request), resolved)
    found = [item.message for item in check_files(held, lambda name: (tmp_path / name).read_bytes(), program)]
    assert len(found) == bool(text)
    assert all(text in message for message in found), found


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"pins": {"jax": "0.10.2.x"}}, "pins has 'jax': '0.10.2.x'"),
        ({"tools": {"isal": ""}}, "tools has 'isal': ''"),
        ({"files": {"a": "A" * 64}}, f"files of a is {'A' * 64!r}, no SHA-256"),
        ({"file_sizes": {"a": True}}, "file_sizes of a is True"),
    ],
)
def test_value_of_another_form_is_named(fields: dict[str, Any], text: str) -> None:
    assert [*malformed_values(wheel_set())] == []
    assert text in [*malformed_values(replace(wheel_set(), **fields))]


@pytest.mark.parametrize("url", ["ftp://index.invalid/{}", "https://index.invalid/other.whl"])
def test_url_of_an_input_that_is_not_its_file_is_named(url: str) -> None:
    first, *others = wheel_set().inputs
    held = replace(wheel_set(), inputs=(replace(first, url=url.format(first.filename)), *others))
    (clause,) = malformed_values(held)
    assert clause.startswith(f"url of {first.filename} among the inputs is")
