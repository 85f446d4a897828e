"""Repair of generated wheels, and failures that must leave nothing behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from core.errors import ArchiveError, CiBuildError, ElfError, MachineError, RepairError
from tests.support.made_wheel import clean_pjrt, coded, fat_binary
from tests.support.silent import Silent
from tests.support.tiny_elf import TinySymbol, tiny_elf
from tests.support.tiny_wheel import contents, make_wheel
from wheelkit.archive.compression import LEVEL
from wheelkit.archive.record_check import verify_record
from wheelkit.archive.wheel_archive import WheelArchive
from wheelkit.elf.snapshot import Elf
from wheelkit.repair.repair_plan import RepairPlan, RepairResult
from wheelkit.repair.wheel_repair import repair

NAME = "tiny-1.0-cp312-cp312-linux_x86_64.whl"
RUNPATH = "$ORIGIN/../_solib_x86_64/somewhere/deep:/opt/rocm/lib:/home/builder/rocm"
Repair = Callable[..., RepairResult]


def plan(**changes: Any) -> RepairPlan:
    values: dict[str, Any] = {
        "project": "tiny",
        "version": "1.0+rocm7.2.0",
        "runpath": {"tiny/*.so": "/opt/rocm/lib"},
        "summary": "Tiny (ROCm 7.2.0)",
        "requires_python": ">=3.12",
        "requires_dist": ("other==1.0+rocm7.2.0",),
        "license_text": b"as you like\n",
    }
    return RepairPlan(**(values | changes))


@pytest.fixture
def library(tmp_path: Path) -> Callable[..., bytes]:
    """Return the bytes of a generated library."""
    return lambda **fields: tiny_elf(
        tmp_path / "made.so", **{"runpath": RUNPATH, **fields}
    ).read_bytes()


@pytest.fixture
def attempt(tmp_path: Path, library: Callable[..., bytes]) -> Repair:
    """Repair a wheel of `files` (by default one library and one module) into tmp_path/out."""

    def run(
        given: dict[str, bytes] | None = None, /, *, name: str = NAME, **changes: Any
    ) -> RepairResult:
        for folder in ("in", "out"):
            (tmp_path / folder).mkdir(exist_ok=True)
        members = given or {"tiny/__init__.py": b"x = 1\n", "tiny/lib.so": library()}
        source = make_wheel(
            tmp_path / "in", members, name=name, modes={"tiny/lib.so": 0o755}
        )
        return repair(
            source, plan(**changes), tmp_path / "out", debug_dir=tmp_path / "debug"
        )

    return run


def nothing_left(folder: Path) -> bool:
    return not list((folder / "out").rglob("*")) and not (folder / "debug").exists()


def test_repair_makes_complete_wheel_with_planned_name(
    attempt: Repair, tmp_path: Path
) -> None:
    made = attempt()
    assert made.path.name == "tiny-1.0+rocm7.2.0-cp312-cp312-manylinux_2_28_x86_64.whl"
    with WheelArchive(made.path) as wheel:
        assert verify_record(wheel) == ()
        assert wheel.dist_info == "tiny-1.0+rocm7.2.0.dist-info"
        assert wheel.headers("WHEEL").get_all("Tag") == [
            "cp312-cp312-manylinux_2_28_x86_64"
        ]
        assert wheel.headers("WHEEL")["Root-Is-Purelib"] == "false"
        assert wheel.headers("METADATA")["Version"] == "1.0+rocm7.2.0"
        assert (
            wheel.read("tiny-1.0+rocm7.2.0.dist-info/licenses/LICENSE.txt")
            == b"as you like\n"
        )
        assert wheel.read("tiny/__init__.py") == b"x = 1\n"
        assert [m.mode for m in wheel.members if m.name == "tiny/lib.so"] == [0o755]
        assert wheel.size == made.wheel.size
        (info,) = made.wheel.members
        assert wheel.extract("tiny/lib.so", tmp_path / "lib.so") == info.sha256
    assert Elf.read(tmp_path / "lib.so").runpath == "/opt/rocm/lib"


@pytest.mark.parametrize(
    ("symbol", "needed", "added"),
    [
        ("hipMalloc", (), True),
        ("hipMalloc", ("libamdhip64.so.7",), False),
        ("hipblasCreate", (), False),
    ],
)
def test_repair_adds_needed_hip_runtime_where_used(
    attempt: Repair,
    library: Callable[..., bytes],
    symbol: str,
    needed: tuple[str, ...],
    added: bool,
) -> None:
    data = library(symbols=[TinySymbol(symbol)], needed=("libc.so.6", *needed), spare=1)
    made = attempt(
        {"tiny/lib.so": data},
        hip_soname="libamdhip64.so.7",
        allowed_sonames=frozenset({"libamdhip64.so.7"}),
    )
    (info,) = made.wheel.members
    assert info.needed == (
        "libc.so.6",
        *needed,
        *(["libamdhip64.so.7"] if added else []),
    )


def test_repair_adds_and_replaces_planned_files_only(
    attempt: Repair, library: Any
) -> None:
    files = {
        "tiny/__init__.py": b"old\n",
        "tiny/kept.py": b"kept\n",
        "tiny/lib.so": library(),
    }
    made = attempt(
        files, files={"tiny/__init__.py": b"new\n", "tiny/more.py": b"more\n"}
    )
    with WheelArchive(made.path) as wheel:
        assert wheel.read("tiny/__init__.py") == b"new\n"
        assert wheel.read("tiny/more.py") == b"more\n"
        assert wheel.read("tiny/kept.py") == b"kept\n"


def test_repair_writes_members_to_build_info(attempt: Repair) -> None:
    made = attempt(
        build_info={"version": "1.0"}, build_info_path="tiny/build_info.json"
    )
    with WheelArchive(made.path) as wheel:
        told = json.loads(wheel.read("tiny/build_info.json"))
    (info,) = made.wheel.members
    assert told["version"] == "1.0"
    assert told["compression"] == {
        "package": "deflate",
        "version": metadata.version("deflate"),
        "level": LEVEL,
    }
    assert [(m["path"], m["sha256"], m["needed"]) for m in told["members"]] == [
        ("tiny/lib.so", info.sha256, ["libc.so.6"])
    ]


@pytest.mark.parametrize(
    ("changes", "error", "named"),
    [
        ({"project": "other"}, RepairError, "instead of other"),
        ({"version": "one"}, RepairError, "not a version"),
        (
            {"runpath": {"elsewhere/*": "/opt/rocm/lib"}},
            RepairError,
            "tiny/lib.so has a RUNPATH, but no glob of the plan",
        ),
        (
            {"device_members": ("tiny/lib.so",)},
            RepairError,
            "tiny/lib.so has no device code",
        ),
        (
            {"device_members": ("tiny/_solver.so",)},
            RepairError,
            "No library matches tiny/_solver.so",
        ),
        ({"files": {"../evil.py": b""}}, ArchiveError, "evil"),
        (
            {"files": {"tiny/lib.so": b"\x7fELF..."}},
            RepairError,
            "Cannot add tiny/lib.so",
        ),
        (
            {"members": ("tiny/_solver.so",)},
            RepairError,
            "lacks tiny/_solver.so, also contains tiny/lib.so",
        ),
    ],
)
def test_repair_unfitting_plan_leaves_nothing(
    attempt: Repair,
    tmp_path: Path,
    changes: dict[str, Any],
    error: type[CiBuildError],
    named: str,
) -> None:
    with pytest.raises(error, match=named):
        attempt(**changes)
    assert nothing_left(tmp_path)


def test_repair_refuses_library_with_rpath(
    attempt: Repair, library: Callable[..., bytes], tmp_path: Path
) -> None:
    data = library(runpath_tag=15)
    with pytest.raises(ElfError, match="RPATH instead of RUNPATH"):
        attempt({"tiny/lib.so": data})
    assert nothing_left(tmp_path)


def test_repair_refuses_damaged_device_code(tmp_path: Path) -> None:
    made = clean_pjrt()
    good = fat_binary()
    coded(made, good[:24] + bytes(8) + good[32:])
    with pytest.raises(RepairError, match="MD5"):
        repair(made.write(tmp_path), plan(project="jax-rocm7-pjrt"), tmp_path)


@pytest.mark.parametrize("missing", ["out", "debug"])
def test_repair_reports_unusable_folder(
    tmp_path: Path, library: Callable[..., bytes], missing: str
) -> None:
    source = make_wheel(tmp_path, {"tiny/lib.so": library()}, name=NAME)
    (tmp_path / {"out": "debug", "debug": "out"}[missing]).mkdir()
    (tmp_path / missing).write_bytes(b"a file is in the way")
    with pytest.raises(MachineError, match=missing):
        repair(source, plan(), tmp_path / "out", debug_dir=tmp_path / "debug")
    assert list((tmp_path / "out").glob("*")) == []


def test_repair_refuses_source_with_wrong_record(
    tmp_path: Path, library: Callable[..., bytes]
) -> None:
    members = contents(
        {"tiny/__init__.py": b"x = 1\n", "tiny/lib.so": library()},
        info="tiny-1.0.dist-info",
    )
    members["tiny/lib.so"] = library(needed=("libevil.so",))
    members["tiny/extra.py"] = b"surprise"
    source = make_wheel(tmp_path, name=NAME, members=members)
    (tmp_path / "out").mkdir()
    with pytest.raises(
        ArchiveError,
        match=r"(?s)tiny/lib.so \[record-wrong-hash\].*tiny/extra.py \[record-missing-entry\]",
    ):
        repair(source, plan(), tmp_path / "out")
    assert nothing_left(tmp_path)


def test_repair_interrupted_leaves_nothing(
    tmp_path: Path, library: Callable[..., bytes]
) -> None:
    class Interrupter(Silent):
        def __init__(self, at: int) -> None:
            self.left = at

        def step(self, text: str) -> None:
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt

    source = make_wheel(tmp_path, {"tiny/lib.so": library()}, name=NAME)
    (tmp_path / "out").mkdir()
    for step in (1, 2, 3):
        with pytest.raises(KeyboardInterrupt):
            repair(
                source,
                plan(),
                tmp_path / "out",
                debug_dir=tmp_path / "debug",
                progress=Interrupter(step),
            )
        assert nothing_left(tmp_path)
