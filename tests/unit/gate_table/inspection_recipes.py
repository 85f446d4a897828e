"""Differences from the recorded recipes that the gate inspection reports."""

from __future__ import annotations

import functools
import io
import json
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ci_build.wheelset.expected import expected_set
from ci_build.wheelset.set_files import write_set
from core.model import PYLOCK, SBOM, SHA256SUMS, Finding, MemberInfo, WheelSet, to_json
from core.steps import tool_versions
from pjrt import jax_wheels
from promotion.gates.recipe_check import check_files, check_wheel
from promotion.gates.set_record import read_build_info
from tests.support import sets
from tests.support.made_wheel import LIB, MadeWheel, clean_pjrt, look
from tests.unit.ci_build.test_set_files import JAX, NUMPY_311, NUMPY_312
from tests.unit.gate_table.model import Row, Scene, folder_of
from wheelkit.archive.filename import WheelName
from wheelkit.archive.wheel_archive import WheelArchive
from wheelkit.inspect.inspection_model import ElfFacts
from wheelkit.repair.metadata import (
    render_entry_points,
    rewrite_metadata,
    rewrite_wheel,
)

GATE = "inspection"
VERSION = "0.10.2+rocm7.2.0.gfx942"
LOADER = "jax_plugins/xla_rocm7"
INFO = f"{LOADER}/build_info.json"
MEMBER = MemberInfo(
    path=f"{LOADER}/xla_rocm_plugin.so",
    size=3,
    sha256="4" * 64,
    targets=("gfx942",),
    needed=(),
    symbol_versions={},
)
PLAN = jax_wheels.repair_plan("pjrt", sets.published_request("gfx942"), VERSION)
REQUEST = {
    "payload": "published",
    "strip": True,
    "targets": ["gfx942"],
}


@functools.cache
def program() -> str:
    """Return the digest of this program."""
    return tool_versions()["ci_build"]


def build_info(wheel: Path) -> Mapping[str, Any]:
    """Return the build information in a wheel."""
    with wheel.open("rb") as file:
        return read_build_info(file)


# Wheels


@dataclass
class Made:
    """A pjrt wheel of this program, the facts about its library, and its set's tools."""

    wheel: MadeWheel
    elfs: tuple[ElfFacts, ...]
    tools: dict[str, str]


@functools.cache
def _elf() -> ElfFacts:
    with tempfile.TemporaryDirectory() as folder:
        report = look(clean_pjrt(), Path(folder))
    (elf,) = (elf for elf in report.elfs if elf.path == LIB)
    runpath = next(
        path
        for glob, path in PLAN.runpath.items()
        if glob.endswith(".so") or "*" in glob
    )
    return replace(elf, path=MEMBER.path, runpath=tuple(runpath.split(":")))


def made_wheel() -> MadeWheel:
    """Return a pjrt wheel as this program writes it, with another library."""
    made = MadeWheel(project="jax_rocm7_pjrt", version=VERSION)
    info = {
        **PLAN.build_info,
        "members": to_json((MEMBER,)),
        "inputs": [],
        "tools": {"isal": "1"},
    }
    made.files = {
        **PLAN.files,
        MEMBER.path: b"lib",
        PLAN.build_info_path: json.dumps(info).encode(),
    }
    assert PLAN.entry_points is not None
    made.info = {
        "entry_points.txt": render_entry_points(PLAN.entry_points),
        "top_level.txt": b"jax_plugins\n",
        "licenses/LICENSE.txt": PLAN.license_text,
    }
    metadata = rewrite_metadata(
        b"Metadata-Version: 2.4\nName: jax-rocm7-pjrt\nVersion: 1\n\n", PLAN
    )
    made.metadata = metadata.decode().rstrip("\n").split("\n")
    head = b"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: false\n"
    tags = WheelName.parse(made.filename).tags
    made.wheel = (
        rewrite_wheel(head, tags=tags, build="").decode().rstrip("\n").split("\n")
    )
    return made


def check(
    made: MadeWheel, folder: Path, *, elfs: tuple[ElfFacts, ...] = (), **fields: Any
) -> list[Finding]:
    """Compare a wheel with its recipe; `fields` are those of its set."""
    path = made.write(folder)
    wheel = sets.wheel(path.name, "jax-rocm7-pjrt", VERSION, members=(MEMBER,))
    changes = {
        "request": {},
        "tools": {"ci_build": "0", "isal": "1"},
        "wheels": (wheel,),
        **fields,
    }
    wheel_set = sets.wheel_set(**changes)
    info = build_info(path)
    # The set has no files, which are not compared here.
    recorded = replace(wheel_set, tools={})
    expected = expected_set(recorded, {wheel.filename: info}, lambda _: b"")
    with WheelArchive(path) as archive:
        return list(
            check_wheel(
                archive,
                elfs,
                wheel,
                wheel_set,
                info,
                expected,
            )
        )


def _check(made: Made, folder: Path) -> Iterable[Finding]:
    return check(made.wheel, folder, elfs=made.elfs, request=REQUEST, tools=made.tools)


RECIPE = Scene(
    lambda _: Made(made_wheel(), (_elf(),), {"ci_build": "0", "isal": "1"}), _check
)
Edit = Callable[[Made], object]


def content(name: str, old: bytes, new: bytes) -> Edit:
    """Replace bytes in a file of the wheel."""

    def edit(made: Made) -> None:
        files = made.wheel.files if name in made.wheel.files else made.wheel.info
        assert old in files[name]
        files[name] = files[name].replace(old, new)

    return edit


def informed(**values: Any) -> Edit:
    """Change values in build_info.json."""

    def edit(made: Made) -> None:
        info = json.loads(made.wheel.files[INFO])
        made.wheel.files[INFO] = json.dumps({**info, **values}).encode()

    return edit


def repacked(
    change: Callable[[list[zipfile.ZipInfo]], list[zipfile.ZipInfo] | None],
) -> Edit:
    """Pack the archive again after a change of its entries."""

    def pack(data: bytes) -> bytes:
        out = io.BytesIO()
        with (
            zipfile.ZipFile(io.BytesIO(data)) as source,
            zipfile.ZipFile(out, "w") as archive,
        ):
            entries = source.infolist()
            for entry in change(entries) or entries:
                archive.writestr(entry, source.read(entry.filename))
        return out.getvalue()

    return lambda made: setattr(made.wheel, "archive", pack)


def later(entries: list[zipfile.ZipInfo]) -> None:
    for entry in entries:
        entry.date_time = (2020, 2, 2, 2, 2, 2)


def commented(entries: list[zipfile.ZipInfo]) -> None:
    entries[0].comment = b"packed again"


def other_runpath(made: Made) -> None:
    made.elfs = (replace(made.elfs[0], runpath=("$ORIGIN",)),)


def of_another_program(made: Made) -> None:
    informed(recipe="0" * 64)(made)


def of_this_program(made: Made) -> None:
    made.tools["ci_build"] = program()
    informed(recipe="0" * 64)(made)


_EDITS: list[tuple[str, str, str, Edit]] = [
    (
        "payload-differs",
        "edited loader",
        "PRIORITY",
        content(f"{LOADER}/_register.py", b"= 500", b"= 5"),
    ),
    (
        "payload-differs",
        "missing module",
        "missing",
        lambda made: made.wheel.files.pop(f"{LOADER}/_gpus.py"),
    ),
    (
        "payload-differs",
        "additional module",
        "is additional",
        lambda made: made.wheel.files.update({f"{LOADER}/x.py": b""}),
    ),
    (
        "payload-differs",
        "additional file",
        "is additional",
        lambda made: made.wheel.info.update({"notes.txt": b""}),
    ),
    (
        "payload-differs",
        "licence",
        "LICENSE",
        content("licenses/LICENSE.txt", b"Apache", b"Other"),
    ),
    (
        "payload-differs",
        "entry points",
        "entry_points.txt",
        content("entry_points.txt", b"[jax", b"\n[jax"),
    ),
    (
        "payload-differs",
        "top_level.txt",
        "top_level.txt",
        content("top_level.txt", b"jax_plugins", b"jax"),
    ),
    (
        "metadata-differs",
        "Summary",
        "Summary",
        lambda made: made.wheel.replace("Summary", "ROCm 7.2.0"),
    ),
    (
        "metadata-differs",
        "additional field",
        "Dynamic",
        lambda made: made.wheel.replace("Dynamic", "platform"),
    ),
    (
        "metadata-differs",
        "WHEEL",
        "WHEEL",
        lambda made: made.wheel.replace("Generator", "x"),
    ),
    ("build-info-differs", "missing value", "is missing", informed(covers={})),
    ("build-info-differs", "additional value", "is additional", informed(more=1)),
    ("build-info-differs", "stripped", "stripped is", informed(stripped=False)),
    ("build-info-differs", "tools", "tools.isal", informed(tools={"isal": "2"})),
    (
        "build-info-differs",
        "size of a library",
        "members[0].size",
        informed(members=[{**to_json(MEMBER), "size": 4}]),
    ),
    (
        "build-info-differs",
        "invalid target",
        "no recipe writes",
        informed(requested_targets="x"),
    ),
    (
        "build-info-differs",
        "no file",
        "no recipe writes",
        lambda made: made.wheel.files.pop(INFO),
    ),
    ("build-info-differs", "recipe", "recipe is", of_this_program),
    ("recipe-other", "another recipe", "another version", of_another_program),
    ("runpath-differs", "RUNPATH", "RUNPATH of", other_runpath),
    (
        "archive-not-canonical",
        "mode",
        "external attributes",
        lambda made: made.wheel.modes.update({MEMBER.path: 0o666}),
    ),
    ("archive-not-canonical", "times", "local headers", repacked(later)),
    ("archive-not-canonical", "comment", "central directory", repacked(commented)),
    (
        "archive-not-canonical",
        "RECORD first",
        "not the last file",
        repacked(lambda entries: entries[::-1]),
    ),
    (
        "archive-not-canonical",
        "rows of RECORD",
        "rows of RECORD",
        lambda made: setattr(made.wheel, "record", lambda rows: rows[::-1]),
    ),
]
_WHEEL_ROWS = [
    Row(
        GATE,
        code,
        fault,
        RECIPE,
        edit,
        says,
    )
    for code, fault, says, edit in _EDITS
]


# Files beside the wheels


@dataclass(frozen=True)
class Written:
    """The folder of a set that this program wrote."""

    folder: Path
    wheel_set: WheelSet


def written_set(folder: Path) -> Written:
    """Write the files of a set into a folder below another one."""
    resolved = {"3.11": (JAX, NUMPY_311), "3.12": (JAX, NUMPY_312)}
    tools = {**sets.wheel_set().tools, "ci_build": program()}
    place = folder_of(folder, "set")
    return Written(place, write_set(place, sets.wheel_set(tools=tools), resolved))


def files_findings(
    wheel_set: WheelSet, read: Callable[[str], bytes]
) -> Iterable[Finding]:
    """Compare the files of a set with what this program writes."""
    return check_files(read, expected_set(wheel_set, {}, read))


def _check_files(written: Written, _: Path) -> Iterable[Finding]:
    return files_findings(
        written.wheel_set, lambda name: (written.folder / name).read_bytes()
    )


def text(name: str, old: str, new: str) -> Callable[[Written], object]:
    """Replace text in a file of the set."""

    def edit(written: Written) -> None:
        path = written.folder / name
        before = path.read_text()
        assert old in before
        path.write_text(before.replace(old, new))

    return edit


_FILES = Scene(written_set, _check_files)


def _file_row(fault: str, edit: Callable[[Written], object], says: str = "") -> Row:
    return Row(
        GATE,
        "set-file-untrue",
        fault,
        _FILES,
        edit,
        says,
    )


_FILE_ROWS = [
    _file_row("creator of the lock", text(PYLOCK, 'created-by = "', 'created-by = "x')),
    _file_row("size in the lock", text(PYLOCK, "size = ", "size = 1")),
    _file_row(
        "other wheel", text(PYLOCK, "invalid/numpy-", "invalid/x-"), "is not a wheel of"
    ),
    _file_row(
        "identifier in the bill of materials", text(SBOM, "numpy@2.0", "numpy@2.1")
    ),
    _file_row(
        "name in the sums", text(SHA256SUMS, "constraints.txt", "constraint.txt")
    ),
]

ROWS = [*_WHEEL_ROWS, *_FILE_ROWS]
