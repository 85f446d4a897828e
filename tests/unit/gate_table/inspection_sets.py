"""Faults of sets, their records and their files that the gate inspection reports."""

from __future__ import annotations

import functools
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ci_build.wheelset.expected import expected_of_staged
from ci_build.wheelset.inspected_wheels import inspect
from core.model import Finding, InputFile, WheelSet
from promotion.gates.common.gate_context import GateContext
from promotion.gates.inspection_gate import _index_findings, make_gate
from promotion.gates.set_record import (
    debug_differences,
    file_differences,
    set_differences,
    url_differences,
    wheel_differences,
)
from promotion.index.pages import metadata_name
from tests.support import sets
from tests.support.gating import (
    findings_of,
    gate_context,
    stage_wheels,
    staged_set,
)
from tests.support.made_wheel import (
    GLIBC,
    MODULE,
    MadeWheel,
    clean_pjrt,
    clean_plugin,
    fat_binary,
    library,
    look,
    with_sections,
)
from tests.support.silent import NoProcesses, Silent
from tests.support.tiny_elf import TinySymbol
from tests.support.wheel_sets import (
    PJRT_LIBRARY,
    PLUGIN_LIBRARIES,
    TARGETS,
    make_set,
    make_wheels,
    pjrt,
    plugin,
    set_wheel,
    write_set,
)
from tests.unit.core.test_rocm_releases import C849, ROCM_LLVM
from tests.unit.gate_table.inspection_recipes import build_info, program
from tests.unit.gate_table.model import Row, Scene, folder_of
from wheelkit.inspect.inspection_model import WheelReport
from wheelkit.inspect.inspector import inspect_wheel
from wheelkit.inspect.wheel_set import check_set

GATE = "inspection"
VERSION = "0.10.2.post1+rocm7.2.0"
SOURCE: dict[str, Any] = {
    "filename": "source.whl",
    "size": 3,
    "sha256": "5" * 64,
}
UNTRUE = "wheels-json-untrue"


# Wheels that do not fit each other


def _three_wheels(_: Path) -> dict[str, MadeWheel]:
    jaxlib = clean_pjrt()
    jaxlib.project = "jaxlib"
    return {
        "pjrt": clean_pjrt(),
        "plugin": clean_plugin(),
        "jaxlib": jaxlib,
    }


def _check_set(wheels: Mapping[str, MadeWheel], folder: Path) -> Iterable[Finding]:
    return check_set([look(made, folder / name) for name, made in wheels.items()])


def plugin_of_another_rocm(wheels: dict[str, MadeWheel]) -> None:
    wheels["plugin"].replace("Summary", "JAX plugin (ROCm:7.14.0)")


def plugin_for_one_target(wheels: dict[str, MadeWheel]) -> None:
    init = TinySymbol("PyInit__linalg", defined=True)
    wheels["plugin"].files[MODULE] = library(
        GLIBC, init, fatbins=[fat_binary(["gfx942"])]
    )


def pjrt_of_another_version(wheels: dict[str, MadeWheel]) -> None:
    wheels["pjrt"].version = "1.2.4"


def jaxlib_of_another_version(wheels: dict[str, MadeWheel]) -> None:
    wheels["jaxlib"].version = "1.3.0"


def second_pjrt(wheels: dict[str, MadeWheel]) -> None:
    second = clean_pjrt()
    second.platform = "manylinux_2_28_x86_64.manylinux_2_34_x86_64"
    wheels["second"] = second


_SET = Scene(_three_wheels, _check_set)
_SET_ROWS = [
    Row(
        GATE, "set-rocm-differs", "plugin of another ROCm", _SET, plugin_of_another_rocm
    ),
    Row(
        GATE, "set-targets-differ", "plugin for one target", _SET, plugin_for_one_target
    ),
    Row(GATE, "set-pin-unmet", "pjrt", _SET, pjrt_of_another_version),
    Row(GATE, "set-pin-unmet", "jaxlib", _SET, jaxlib_of_another_version),
    Row(GATE, "set-duplicate", "two pjrts", _SET, second_pjrt),
]


# The folder of a set


def _set_folder(folder: Path) -> Path:
    wheels = make_wheels(folder_of(folder, "wheels"), pythons=("3.12",))
    return write_set(folder_of(folder, "set"), wheels, make_set(wheels))


def _inspect_folder(path: Path, _: Path) -> Iterable[Finding]:
    report = inspect(
        [str(path)],
        expected=None,
        rocm=None,
        progress=Silent(),
        runner=NoProcesses(),
    )
    return report.findings


def remove_wheel(path: Path) -> None:
    next(path.glob("jaxlib-*.whl")).unlink()


def replace_wheel(path: Path) -> None:
    next(path.glob("jaxlib-*.whl")).write_bytes(
        next(path.glob("jax_rocm7_plugin-*.whl")).read_bytes()
    )


_FOLDER = Scene(_set_folder, _inspect_folder)
_FOLDER_ROWS = [
    Row(GATE, "set-wheel-missing", "removed", _FOLDER, remove_wheel),
    Row(GATE, "set-wheel-differs", "replaced", _FOLDER, replace_wheel),
]


# wheels.json


@dataclass(frozen=True)
class Record:
    """A set that this program built, with the reports and the build information of its wheels."""

    wheel_set: WheelSet
    reports: tuple[WheelReport, ...]
    infos: tuple[Mapping[str, Any], ...]


def built(made: MadeWheel, package: str) -> MadeWheel:
    """Add the build information of a wheel that this program built."""
    info = {
        "version": VERSION,
        "jax_version": "0.10.2",
        "rocm_version": "7.2.0",
        "inputs": [SOURCE],
    }
    made.files[f"{package}/build_info.json"] = json.dumps(info).encode()
    return made


@functools.cache
def record() -> Record:
    """Return the record of a set of small wheels."""
    own = [
        (built(pjrt(VERSION), "jax_plugins/xla_rocm7"), (PJRT_LIBRARY,)),
        (built(plugin(VERSION), "jax_rocm7_plugin"), PLUGIN_LIBRARIES),
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheels = [
            set_wheel(made, folder, dict.fromkeys(libraries, TARGETS))
            for made, libraries in own
        ]
        wheels = [
            replace(
                made,
                wheel=replace(
                    made.wheel,
                    source_sha256=SOURCE["sha256"],
                    source_size=SOURCE["size"],
                ),
            )
            for made in wheels
        ]
        wheels += [
            made
            for made in make_wheels(folder, pythons=("3.12",))
            if made.wheel.name == "jaxlib"
        ]
        paths = [folder / made.wheel.filename for made in wheels]
        reports = tuple(inspect_wheel(path) for path in paths)
        infos = tuple(build_info(path) for path in paths)
    inputs = [
        InputFile(
            filename="x",
            size=made.wheel.source_size,
            sha256=made.wheel.source_sha256,
            url="",
        )
        for made in wheels
    ]
    return Record(make_set(wheels, inputs=tuple(inputs)), reports, infos)


def compare_record(held: Record) -> Iterable[Finding]:
    """Return the findings on a record."""
    for wheel, report, info in zip(
        held.wheel_set.wheels, held.reports, held.infos, strict=True
    ):
        yield from wheel_differences(report, wheel, info)
    yield from set_differences(held.wheel_set, held.reports, held.infos)


RECORD = Scene(lambda _: record(), lambda held, _: compare_record(held))
Edit = Callable[[Any], object]


def of_set(**changes: Any) -> Edit:
    """Change fields of the set in wheels.json."""
    return lambda held: replace(held, wheel_set=replace(held.wheel_set, **changes))


def of_wheel(**changes: Any) -> Edit:
    """Change fields of the first wheel in wheels.json."""

    def edit(record: Record) -> Record:
        first, *others = record.wheel_set.wheels
        wheels = (replace(first, **changes), *others)
        return replace(record, wheel_set=replace(record.wheel_set, wheels=wheels))

    return edit


def of_member(**changes: Any) -> Edit:
    """Change fields of the first library in wheels.json."""

    def edit(record: Record) -> object:
        member = replace(record.wheel_set.wheels[0].members[0], **changes)
        return of_wheel(members=(member,))(record)

    return edit


def of_input(**changes: Any) -> Edit:
    """Change fields of the first input in wheels.json."""

    def edit(record: Record) -> object:
        first, *others = record.wheel_set.inputs
        return of_set(inputs=(replace(first, **changes), *others))(record)

    return edit


def without_jaxlib(record: Record) -> Record:
    kept = tuple(wheel for wheel in record.wheel_set.wheels if wheel.name != "jaxlib")
    changed = replace(record.wheel_set, wheels=kept, pins={"jax": "0.10.2"})
    return Record(changed, record.reports[: len(kept)], record.infos[: len(kept)])


def of_another_compiler(record: Record) -> Record:
    made = built(plugin(VERSION), "jax_rocm7_plugin")
    mark = (".comment", 1, 0x30, f"{ROCM_LLVM}{C849})\0".encode())
    made.files[PLUGIN_LIBRARIES[0]] = with_sections(
        made.files[PLUGIN_LIBRARIES[0]], mark
    )
    with tempfile.TemporaryDirectory() as folder:
        report = inspect_wheel(made.write(Path(folder)))
    return replace(record, reports=(record.reports[0], report, *record.reports[2:]))


def downloaded(record: Record) -> Record:
    """Let a set from source have inputs from a package index."""
    inputs = tuple(
        replace(item, url="https://example.org/x.whl")
        for item in record.wheel_set.inputs
    )
    changed = replace(record.wheel_set, inputs=inputs, request={"payload": "source"})
    return replace(record, wheel_set=changed)


LABEL = {"rocm.lock": "7" * 64}
_RECORD_EDITS: list[tuple[str, str, Edit]] = [
    ("jax_version", "about jax_version", of_set(jax_version="0.10.1")),
    ("rocm_version", "about rocm_version", of_set(rocm_version="7.2.1")),
    ("rocm_version of the compiler", "was compiled by", of_another_compiler),
    ("python_versions", "about python_versions", of_set(python_versions=("3.13",))),
    ("pin of jax", "but jax_version is", of_set(pins={"jax": "0.10.1"})),
    (
        "pin that a wheel refuses",
        "jaxlib is 0.12.0",
        of_set(pins={"jax": "0.10.2", "jaxlib": "0.12.0"}),
    ),
    ("no pin of jax", "is missing", of_set(pins={"jaxlib": "0.10.2"})),
    ("required jaxlib", "neither has nor pins", without_jaxlib),
    ("index", "about index", of_set(index="gfx110X-all")),
    ("no inputs", "about inputs", of_set(inputs=())),
    (
        "other inputs",
        "about inputs",
        of_set(inputs=(InputFile(filename="x", size=3, sha256="6" * 64, url=""),)),
    ),
    ("downloaded source", "from a downloaded wheel", downloaded),
    (
        "rocm.lock of another request",
        "about rocm.lock",
        of_set(files=LABEL, request={"payload": "published", "source": {"rocm": "8"}}),
    ),
    ("name", "name is", of_wheel(name="jax-rocm7-other")),
    ("version", "version is", of_wheel(version="0.10.2+rocm7.2.0")),
    ("tags", "tags is", of_wheel(tags=("cp313-cp313-manylinux_2_28_x86_64",))),
    ("size", "size is", of_wheel(size=1)),
    ("requires_python", "requires_python is", of_wheel(requires_python=">=3.9")),
    ("requires_dist", "requires_dist is", of_wheel(requires_dist=("jaxlib",))),
    ("source_sha256", "source_sha256 is", of_wheel(source_sha256="6" * 64)),
    ("source_size", "source_size is", of_wheel(source_size=4)),
    ("sha256 of a library", "sha256 is", of_member(sha256="0" * 64)),
    ("targets of a library", "targets is", of_member(targets=("gfx942",))),
    ("unlisted library", "does not list it", of_member(path="elsewhere.so")),
    ("form of a version", "pins has", of_set(pins={"jax": "0.10.2.x"})),
    ("form of a digest", "no SHA-256", of_set(files={"a": "A" * 64})),
    (
        "form of a URL",
        "among the inputs is",
        of_input(filename="x.whl", url="ftp://index.invalid/x.whl"),
    ),
]
_RECORD_ROWS = [
    Row(
        GATE,
        UNTRUE,
        fault,
        RECORD,
        edit,
        says,
    )
    for fault, says, edit in _RECORD_EDITS
]


# The URL of an unchanged wheel


@dataclass(frozen=True)
class Origin:
    """A wheel that the set has as published, and the digest in its URL."""

    digest: str


def _compare_url(origin: Origin, folder: Path) -> Iterable[Finding]:
    path = folder / "jaxlib.whl"
    path.write_bytes(b"content")
    digest = origin.digest
    url = f"https://files.invalid/packages/{digest[:2]}/{digest[2:4]}/{digest[4:]}/jaxlib.whl"
    item = InputFile(filename="jaxlib.whl", size=7, sha256="1" * 64, url=url)
    wheel = sets.wheel(
        "jaxlib-1-py3-none-any.whl",
        "jaxlib",
        "1",
        sha256="1" * 64,
        source_sha256="1" * 64,
    )
    return url_differences(make_set([], inputs=(item,)), wheel, path)


_URL = Scene(
    lambda _: Origin(hashlib.blake2b(b"content", digest_size=32).hexdigest()),
    _compare_url,
)
_URL_ROWS = [
    Row(
        GATE,
        "source-differs",
        "digest in the URL",
        _URL,
        lambda origin: Origin(origin.digest[::-1]),
    )
]


# Files beside the wheels

_LOCK = """requires-python = ">=3.12"
[[packages]]
name = "jax"
version = "0.10.2"
[[packages.wheels]]
name = "jax-0.10.2-py3-none-any.whl"
hashes = {sha256 = "1"}
[[packages]]
name = "jax-rocm7-pjrt"
version = "1"
[[packages.wheels]]
name = "jax_rocm7_pjrt-1-py3-none-any.whl"
hashes = {sha256 = "a"}
"""
_BILL = {
    "components": [
        {
            "name": "jax",
            "version": "0.10.2",
            "bom-ref": "jax-0.10.2-py3-none-any.whl",
        },
        {
            "name": "jax-rocm7-pjrt",
            "version": "1",
            "bom-ref": "jax_rocm7_pjrt-1-py3-none-any.whl",
            "hashes": [{"alg": "SHA-256", "content": "a"}],
        },
    ]
}


def _files(_: Path) -> dict[str, str]:
    constraints = "jax==0.10.2\njax-rocm7-pjrt==1\n"
    return {
        "constraints.txt": constraints,
        "pylock.toml": _LOCK,
        "sbom.cdx.json": json.dumps(_BILL),
    }


def _compare_files(files: Mapping[str, str], _: Path) -> Iterable[Finding]:
    wheel = sets.wheel(
        "jax_rocm7_pjrt-1-py3-none-any.whl", "jax-rocm7-pjrt", "1", sha256="a"
    )
    digests = dict.fromkeys(files, "5" * 64)
    wheel_set = sets.wheel_set(
        wheels=(wheel,),
        pins={"jax": "0.10.2"},
        files=digests,
        python_versions=("3.12",),
    )
    return file_differences(wheel_set, lambda name: files[name].encode())


def text(name: str, old: str, new: str) -> Edit:
    """Replace text in a file."""

    def edit(files: dict[str, str]) -> None:
        assert old in files[name]
        files[name] = files[name].replace(old, new)

    return edit


FILES = Scene(_files, _compare_files)
_FILE_EDITS: list[tuple[str, str, Edit]] = [
    (
        "version in constraints",
        "jax 0.10.1",
        text("constraints.txt", "0.10.2", "0.10.1"),
    ),
    (
        "project missing in constraints",
        "no jax-rocm7-pjrt",
        text("constraints.txt", "jax-rocm7-pjrt==1\n", ""),
    ),
    ("version in the lock", "jax 0.9", text("pylock.toml", "0.10.2", "0.9")),
    ("hash in the lock", "sha256 b", text("pylock.toml", '"a"', '"b"')),
    (
        "Requires-Python of the lock",
        "requires-python",
        text("pylock.toml", ">=3.12", ">=3.13"),
    ),
    (
        "no wheel for the Python in the lock",
        "no wheel of jax",
        text("pylock.toml", "py3-none", "cp311-cp311"),
    ),
    ("damaged lock", "cannot be read", text("pylock.toml", "[[packages]]", "[")),
    (
        "hash in the bill of materials",
        "sha256 b",
        text("sbom.cdx.json", '"content": "a"', '"content": "b"'),
    ),
    (
        "version in the bill of materials",
        "jax 0.9",
        text("sbom.cdx.json", '"0.10.2"', '"0.9"'),
    ),
    (
        "damaged bill of materials",
        "cannot be read",
        text("sbom.cdx.json", "components", "parts"),
    ),
]
_FILE_ROWS = [
    Row(
        GATE,
        "set-file-untrue",
        fault,
        FILES,
        edit,
        says,
    )
    for fault, says, edit in _FILE_EDITS
]


# Debug files


@dataclass
class Debug:
    """CRC-32 of the debug files of a library by name.

    The library needs `a.so.debug` with the CRC-32 of 7.
    """

    sums: dict[str, int] = field(default_factory=lambda: {"a.so.debug": 7})


def _compare_debug(debug: Debug, _: Path) -> Iterable[Finding]:
    held = record()
    package = PJRT_LIBRARY.rpartition("/")[0]
    elf = replace(
        held.reports[0].elfs[0],
        path=f"{package}/a.so",
        debug_file="a.so.debug",
        debug_crc32=7,
    )
    report = replace(held.reports[0], elfs=(elf,))
    folder = f"debug/{report.filename.removesuffix('.whl')}/{package}"
    sums = {f"{folder}/{name}": crc for name, crc in debug.sums.items()}
    wheel_set = replace(held.wheel_set, files=dict.fromkeys(sums, "5" * 64))
    return debug_differences(wheel_set, [report], sums.__getitem__)


_DEBUG = Scene(lambda _: Debug(), _compare_debug)
_DEBUG_ROWS = [
    Row(
        GATE,
        "debug-file-wrong",
        "of another build",
        _DEBUG,
        lambda debug: debug.sums.update({"a.so.debug": 8}),
    ),
    Row(
        GATE, "debug-file-wrong", "missing", _DEBUG, lambda _: Debug({"b.so.debug": 7})
    ),
    Row(
        GATE,
        "debug-file-wrong",
        "of no library",
        _DEBUG,
        lambda debug: debug.sums.update({"b.so.debug": 7}),
    ),
]


# The staged index


def _staged(folder: Path) -> GateContext:
    bucket, staged = stage_wheels(
        folder, make_wheels(folder_of(folder, "w"), pythons=("3.12",))
    )
    return gate_context(folder, bucket, staged, NoProcesses())


def stored(context: GateContext, key: str, data: bytes) -> None:
    """Replace an object of the bucket."""
    path = context.bucket.path(key)  # type: ignore[attr-defined]
    path.unlink()
    path.write_bytes(data)


def page(change: Callable[[list[dict[str, Any]]], object]) -> Edit:
    """Change the files on jaxlib's page."""

    def edit(context: GateContext) -> None:
        key = f"{context.staged.simple}jaxlib/index.json"
        body = json.loads(context.bucket.get(key))
        change(body["files"])
        stored(context, key, json.dumps(body).encode())

    return edit


def other_metadata(context: GateContext) -> None:
    name = context.wheel_set.wheels[0].filename
    stored(context, context.staged.file(metadata_name(name)), b"Name: other\n")


_INDEX = Scene(_staged, lambda context, _: _index_findings(context))
_INDEX_ROWS = [
    Row(
        GATE,
        "index-incomplete",
        "no file on a page",
        _INDEX,
        page(lambda files: files.clear()),
    ),
    Row(
        GATE,
        "index-untrue",
        "hash of a wheel",
        _INDEX,
        page(lambda files: files[0]["hashes"].update(sha256="0")),
    ),
    Row(
        GATE,
        "index-untrue",
        "hash of METADATA",
        _INDEX,
        page(lambda files: files[0]["core-metadata"].update(sha256="0")),
    ),
    Row(GATE, "index-untrue", "METADATA", _INDEX, other_metadata),
]

# The whole gate on a staged set, which shows that it calls each comparison


@dataclass
class Whole:
    """Wheels of a staged set, by project.

    Attributes:
        changes: fields of the set.
        files: name -> content of further files of the set.
    """

    wheels: dict[str, MadeWheel]
    changes: dict[str, Any] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)


def _whole(_: Path) -> Whole:
    return Whole({"pjrt": pjrt(), "plugin": plugin()})


def _run_inspection(whole: Whole, folder: Path) -> Iterable[Finding]:
    place = folder_of(folder, "w")
    wheels = []
    for made in whole.wheels.values():
        libraries = [path for path in made.files if path.endswith(".so")]
        wheels.append(set_wheel(made, place, dict.fromkeys(libraries, TARGETS)))
    changes = {"pins": {"jax": "0.10.2", "jaxlib": "0.10.2"}, **whole.changes}
    bucket, staged = staged_set(folder, wheels, more=whole.files, **changes)
    gate = make_gate(expected_of_staged(bucket, staged))
    return findings_of(folder, gate, bucket, staged)


def of_whole(**changes: Any) -> Edit:
    """Change fields of the set."""
    return lambda whole: whole.changes.update(changes)


def debug_file(whole: Whole) -> None:
    whole.files[
        f"debug/{whole.wheels['pjrt'].filename.removesuffix('.whl')}/x.debug"
    ] = b"symbols"


def other_source(whole: Whole) -> None:
    info = {"inputs": [SOURCE]}
    whole.wheels["pjrt"].files["jax_plugins/xla_rocm7/build_info.json"] = json.dumps(
        info
    ).encode()


def other_pjrt(whole: Whole) -> None:
    whole.wheels["pjrt"] = pjrt("0.10.2+rocm7.9.9")


def damaged_lock(whole: Whole) -> None:
    whole.files["pylock.toml"] = b"["


def of_this_program(whole: Whole) -> None:
    """Let the set be one of this program, which cannot write its files again."""
    whole.changes["tools"] = {"ci_build": program()}
    whole.changes["request"] = {"payload": "source", "source": {"rocm": "1" * 64}}
    whole.files["rocm.lock"] = b"schema = 1"


WHOLE = Scene(_whole, _run_inspection)
_WHOLE_ROWS = [
    Row(
        GATE,
        "purelib-with-elf",
        "gate",
        WHOLE,
        lambda whole: whole.wheels["pjrt"].replace("Root-Is-Purelib", "true"),
    ),
    Row(
        GATE,
        "wheels-json-untrue",
        "gate: source of a wheel",
        WHOLE,
        other_source,
        "source_sha256",
    ),
    Row(GATE, "build-info-differs", "gate", WHOLE, other_source),
    Row(GATE, "set-pin-unmet", "gate", WHOLE, other_pjrt),
    Row(
        GATE,
        "wheels-json-untrue",
        "gate: jax_version",
        WHOLE,
        of_whole(jax_version="0.10.1"),
        "about jax_version",
    ),
    Row(
        GATE,
        "set-file-untrue",
        "gate: lock",
        WHOLE,
        damaged_lock,
        "cannot be read",
    ),
    Row(
        GATE,
        "set-file-untrue",
        "gate: file of this program",
        WHOLE,
        of_this_program,
        "written again",
    ),
    Row(GATE, "debug-file-wrong", "gate", WHOLE, debug_file),
]

ROWS = [
    *_SET_ROWS,
    *_FOLDER_ROWS,
    *_RECORD_ROWS,
    *_URL_ROWS,
    *_FILE_ROWS,
    *_DEBUG_ROWS,
    *_INDEX_ROWS,
    *_WHOLE_ROWS,
]
