"""wheels.json compared with the wheels: each false value is named, and true records have no finding."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from core.model import InputFile, WheelSet
from promotion.gates import inspection
from promotion.gates.common.runs import run_gates
from promotion.gates.set_record import (
    debug_differences,
    file_differences,
    read_build_info,
    set_differences,
    url_differences,
    wheel_differences,
)
from promotion.stage import stage
from promotion.storage.directory_bucket import DirBucket
from tests.support.made_wheel import MadeWheel, with_sections
from tests.support.silent import NoProcesses, Silent
from tests.support.wheel_sets import (
    PJRT_LIBRARY,
    PLUGIN_LIBRARIES,
    TARGETS,
    SetWheel,
    make_set,
    make_wheels,
    pjrt,
    plugin,
    set_wheel,
    write_set,
)
from tests.unit.core.test_rocm_releases import C849, ROCM_LLVM
from wheelkit.inspect.inspect import inspect_wheel
from wheelkit.inspect.model import WheelReport

SOURCE: dict[str, Any] = {"filename": "source.whl", "size": 3, "sha256": "5" * 64}
VERSION = "0.10.2.post1+rocm7.2.0"


@dataclass(frozen=True)
class Scene:
    """A set whose wheels this program built, with reports and build information of its wheels in the set's order."""

    wheels: list[SetWheel]
    wheel_set: WheelSet
    reports: list[WheelReport]
    infos: list[Mapping[str, Any]]

    def problems(self, wheel_set: WheelSet) -> list[str]:
        """Return the messages about another record of the same wheels."""
        rows = zip(wheel_set.wheels, self.reports, self.infos, strict=True)
        found = [item for wheel, report, info in rows for item in wheel_differences(report, wheel, info)]
        found += set_differences(wheel_set, self.reports, self.infos)
        assert {item.code for item in found} <= {"wheels-json-untrue"}
        return [item.message for item in found]


def built(made: MadeWheel, package: str) -> MadeWheel:
    """Add the build information of a repaired wheel."""
    info = {"version": VERSION, "jax_version": "0.10.2", "rocm_version": "7.2.0", "inputs": [SOURCE]}
    made.files[f"{package}/build_info.json"] = json.dumps(info).encode()
    return made


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    folder = tmp_path_factory.mktemp("record")
    made = [
        (built(pjrt(VERSION), "jax_plugins/xla_rocm7"), (PJRT_LIBRARY,)),
        (built(plugin(VERSION), "jax_rocm7_plugin"), PLUGIN_LIBRARIES),
    ]
    wheels = [set_wheel(one, folder, dict.fromkeys(libraries, TARGETS)) for one, libraries in made]
    wheels = [
        replace(one, wheel=replace(one.wheel, source_sha256=SOURCE["sha256"], source_size=SOURCE["size"]))
        for one in wheels
    ]
    wheels += [one for one in make_wheels(folder, pythons=("3.12",)) if one.wheel.name == "jaxlib"]
    inputs = [
        InputFile(filename="x", size=one.wheel.source_size, sha256=one.wheel.source_sha256, url="") for one in wheels
    ]
    wheel_set = make_set(wheels, inputs=tuple(inputs))
    paths = [folder / one.wheel.filename for one in wheels]
    return Scene(wheels, wheel_set, [inspect_wheel(path) for path in paths], [read_build_info(path) for path in paths])


def test_true_record_has_no_findings(scene: Scene) -> None:
    assert scene.problems(scene.wheel_set) == []
    assert [info.get("jax_version") for info in scene.infos] == ["0.10.2", "0.10.2", None]


def test_adopted_wheel_is_its_own_source(scene: Scene) -> None:
    """Its build information has the source of the build before."""
    own = tuple(replace(wheel, source_sha256=wheel.sha256, source_size=wheel.size) for wheel in scene.wheel_set.wheels)
    assert scene.problems(replace(scene.wheel_set, wheels=own, inputs=())) == []


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("jax_version", "0.10.1", "about jax_version: it is 0.10.1, but jax_rocm7_pjrt-"),
        ("rocm_version", "7.2.1", "about rocm_version: it is 7.2.1, but jax_rocm7_pjrt-"),
        (
            "python_versions",
            ("3.11", "3.12"),
            "about python_versions: jax-rocm7-plugin has wheels for 3.12, not for 3.11, 3.12.",
        ),
        ("python_versions", ("3.13",), "about python_versions: jax-rocm7-plugin has wheels for 3.12, not for 3.13."),
        ("pins", {"jax": "0.10.1"}, "about pins: jax is 0.10.1, but jax_version is 0.10.2."),
        ("pins", {"jax": "0.10.2", "jaxlib": "0.12.0"}, "about pins: jaxlib is 0.12.0, but jax_rocm7_"),
        ("pins", {"jaxlib": "0.10.2"}, "about pins: jax, which the gates install with the set, is missing."),
        ("inputs", (), "about inputs: the source of jax_rocm7_pjrt-"),
        ("index", "gfx110X-all", "about index: it is gfx110X-all, but the index of"),
        (
            "inputs",
            (InputFile(filename="x", size=3, sha256="6" * 64, url=""),),
            "about inputs: the source of jax_rocm7",
        ),
    ],
)
def test_false_value_of_set_is_named(scene: Scene, field: str, value: object, message: str) -> None:
    found = scene.problems(replace(scene.wheel_set, **{field: value}))  # type: ignore[arg-type]
    assert any(message in text for text in found), found


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("name", "jax-rocm7-other", "name is 'jax-rocm7-"),
        ("version", "0.10.2+rocm7.2.0", "version is '0.10.2.post1+rocm7.2.0', not '0.10.2+rocm7.2.0'"),
        ("tags", ("cp313-cp313-manylinux_2_28_x86_64",), "tags is ["),
        ("requires_python", ">=3.9", "requires_python is '>=3.11', not '>=3.9'"),
        ("requires_dist", ("jaxlib",), "requires_dist is ["),
        ("source_sha256", "6" * 64, f"source_sha256 is '{'5' * 64}', not '{'6' * 64}'"),
        ("source_size", 4, "source_size is 3, not 4"),
    ],
)
def test_false_value_of_wheel_is_named(scene: Scene, at: int, field: str, value: object, message: str) -> None:
    wheels = list(scene.wheel_set.wheels)
    wheels[at] = replace(wheels[at], **{field: value})  # type: ignore[arg-type]
    found = scene.problems(replace(scene.wheel_set, wheels=tuple(wheels)))
    assert any(wheels[at].filename in text and message in text for text in found), found


def test_requirement_that_set_neither_has_nor_pins_is_named(scene: Scene) -> None:
    wheels = scene.wheel_set.wheels
    kept = tuple(wheel for wheel in wheels if wheel.name != "jaxlib")
    without = replace(scene.wheel_set, wheels=kept, pins={"jax": "0.10.2"})
    found = [item.message for item in set_differences(without, scene.reports, scene.infos)]
    assert any("requires jaxlib" in text and "neither has nor pins" in text for text in found), found


def test_other_projects_come_from_index_of_user(scene: Scene) -> None:
    wheels = tuple(replace(w, requires_dist=(*w.requires_dist, "numpy>=2.0")) for w in scene.wheel_set.wheels)
    found = [*set_differences(replace(scene.wheel_set, wheels=wheels), scene.reports, scene.infos)]
    assert found == []


def test_label_names_rocm_of_wheel_without_build_info(scene: Scene) -> None:
    found = [*set_differences(replace(scene.wheel_set, rocm_version="7.1.0"), scene.reports, [{}, {}, {}])]
    assert [item.message.rpartition(" is for ")[2] for item in found] == ["ROCm 7.2.0."] * 2


def test_compiler_contradicts_rocm_of_set(scene: Scene, tmp_path: Path) -> None:
    made = built(plugin(VERSION), "jax_rocm7_plugin")
    mark = (".comment", 1, 0x30, f"{ROCM_LLVM}{C849})\0".encode())
    made.files[PLUGIN_LIBRARIES[0]] = with_sections(made.files[PLUGIN_LIBRARIES[0]], mark)
    reports = [scene.reports[0], inspect_wheel(made.write(tmp_path)), *scene.reports[2:]]
    infos = [{}, *scene.infos[1:]]
    (found,) = set_differences(scene.wheel_set, reports, infos)
    assert f"it is 7.2.0, but {PLUGIN_LIBRARIES[0]} in jax_rocm7_plugin-" in found.message
    assert found.message.endswith("was compiled by the clang of ROCm 7.12.0.")
    for rocm in ("7.12.0", "7.13.0a20260314"):
        infos = [{**info, "rocm_version": rocm} if info else {} for info in scene.infos]
        assert [*set_differences(replace(scene.wheel_set, rocm_version=rocm), reports, infos)] == []


@pytest.mark.parametrize(
    ("files", "source", "stamp", "message"),
    [
        ({"rocm.lock": "7" * 64}, {"rocm": "7" * 64}, "7" * 64, ""),
        ({}, {"rocm": "7" * 64}, "7" * 64, ""),  # of an older version
        ({}, None, None, ""),
        ({"rocm.lock": "7" * 64}, {"rocm": "8" * 64}, "7" * 64, f"{'7' * 64}, but wheels.json was made with a ROCm"),
        ({"rocm.lock": "7" * 64}, {}, "7" * 64, "but wheels.json was made"),
        ({"rocm.lock": "7" * 64}, None, "7" * 64, "but wheels.json was made"),
        ({"rocm.lock": "7" * 64}, {"rocm": "7" * 64}, "8" * 64, "but jax_rocm7_pjrt-"),
        ({"rocm.lock": "7" * 64}, {"rocm": "7" * 64}, None, "but jax_rocm7_pjrt-"),
    ],
)
def test_false_lock_is_named(
    scene: Scene, files: Mapping[str, str], source: Mapping[str, str] | None, stamp: str | None, message: str
) -> None:
    infos = [{**info, "sources": {"rocm": stamp}} if info and stamp else info for info in scene.infos]
    wheel_set = replace(scene.wheel_set, files=files, request={**scene.wheel_set.request, "source": source})
    found = [item.message for item in set_differences(wheel_set, scene.reports, infos)]
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


def test_inspection_reports_false_record(scene: Scene, tmp_path: Path) -> None:
    bucket = DirBucket(tmp_path / "bucket")
    first, *others = scene.wheel_set.wheels
    false = replace(scene.wheel_set, jax_version="0.10.1", wheels=(replace(first, source_size=4), *others))
    staged = stage(bucket, write_set(tmp_path / "set", scene.wheels, false))
    (evidence,) = run_gates(bucket, staged, [inspection.GATE], NoProcesses(), Silent())
    found = [item.message for item in evidence.findings if item.code == "wheels-json-untrue"]
    assert any("about jax_version" in text for text in found), found
    assert any("source_size is 3, not 4" in text for text in found), found


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
    ("name", "text", "says"),
    [
        ("constraints.txt", "jax==0.10.2\njax-rocm7-pjrt==1\n", ""),
        ("constraints.txt", "jax==0.10.1\njax-rocm7-pjrt==1\n", "jax 0.10.1, not 0.10.2"),
        ("constraints.txt", "jax==0.10.2\n", "no jax-rocm7-pjrt"),
        ("pylock.toml", LOCK.format(**GOOD), ""),
        ("pylock.toml", LOCK.format(**GOOD | {"jax": "0.9"}), "jax 0.9, not 0.10.2"),
        ("pylock.toml", LOCK.format(**GOOD | {"sha256": "b"}), "sha256 b of jax_rocm7_pjrt-1-py3-none-any.whl, not a"),
        ("pylock.toml", 'requires-python = ">=3.12"\n' + LOCK.format(**GOOD), ""),
        (
            "pylock.toml",
            'requires-python = ">=3.13"\n' + LOCK.format(**GOOD),
            "has requires-python >=3.13, which excludes 3.12.",
        ),
        ("pylock.toml", LOCK.format(**GOOD).replace("py3-none", "cp311-cp311"), "no wheel of jax for Python 3.12"),
        ("pylock.toml", LOCK.format(**GOOD).replace("py3-none", "cp311-abi3"), ""),
        ("pylock.toml", "[", "cannot be read"),
        ("pylock.toml", "", "cannot be read: 'packages'"),
        ("sbom.cdx.json", BILL.format(**GOOD), ""),
        (
            "sbom.cdx.json",
            BILL.format(**GOOD | {"sha256": "b"}),
            "sha256 b of jax_rocm7_pjrt-1-py3-none-any.whl, not a",
        ),
        ("sbom.cdx.json", BILL.format(**GOOD | {"jax": "0.9"}), "jax 0.9, not 0.10.2"),
        ("sbom.cdx.json", "[]", "cannot be read"),
    ],
)
def test_file_differences_names_untrue_file(scene: Scene, name: str, text: str, says: str) -> None:
    wheel = replace(
        scene.wheel_set.wheels[0],
        name="jax-rocm7-pjrt",
        version="1",
        filename="jax_rocm7_pjrt-1-py3-none-any.whl",
        sha256="a",
    )
    made = replace(scene.wheel_set, wheels=(wheel,), pins={"jax": "0.10.2"}, files={name: "5" * 64})
    found = list(file_differences(made, {name: text.encode()}.__getitem__))
    assert [(item.code, says in item.message and name in item.message) for item in found] == (
        [("set-file-untrue", True)] if says else []
    )
    assert list(file_differences(replace(made, files={}), {"": b""}.__getitem__)) == [], "the set has no such file"


@pytest.mark.parametrize(
    ("held", "says"),
    [
        ({"a.so.debug": 7}, ""),
        ({"a.so.debug": 8}, "a.so.debug is of another build: jax_plugins/xla_rocm7/a.so needs the debug file 00000007"),
        ({"b.so.debug": 7}, "a.so.debug is missing"),
        ({"a.so.debug": 7, "b.so.debug": 7}, "b.so.debug belongs to no library of jax_rocm7_pjrt-"),
        ({}, ""),
    ],
)
def test_debug_differences_names_wrong_file(scene: Scene, held: Mapping[str, int], says: str) -> None:
    folder = f"debug/{scene.reports[0].filename.removesuffix('.whl')}/jax_plugins/xla_rocm7"
    elf = replace(scene.reports[0].elfs[0], path="jax_plugins/xla_rocm7/a.so", debug_file="a.so.debug", debug_crc32=7)
    report = replace(scene.reports[0], elfs=(elf,))
    sums = {f"{folder}/{name}": crc for name, crc in held.items()}
    made = replace(scene.wheel_set, files=dict.fromkeys(sums, "5" * 64))
    found = [item.message for item in debug_differences(made, [report], sums.__getitem__)]
    assert (says in found[0]) if says else (found == []), found


def test_downloaded_wheels_are_not_from_source(scene: Scene) -> None:
    made = replace(scene.wheel_set, request={"payload": "source"})
    assert scene.problems(made) == []
    made = replace(made, inputs=tuple(replace(item, url="https://example.org/x.whl") for item in made.inputs))
    found = [text for text in scene.problems(made) if "about request" in text]
    assert len(found) == 2, "not for jaxlib"
    assert "its payload is source, but jax_rocm7_pjrt-" in found[0]
    assert scene.problems(replace(made, request={"payload": "published"})) == []
