"""Faults of device code that the gate coverage reports."""

from __future__ import annotations

import functools
import struct
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from core.model import Finding
from promotion.gates.coverage import coverage_gate
from tests.support.gating import gate_findings
from tests.support.host_code import HostCode, kernel_bundle
from tests.support.made_kernels import MANIFEST, OBJECT, OTHER, clean_kernels, tell
from tests.support.made_wheel import (
    GLIBC,
    MadeWheel,
    fat_binary,
    hip_library,
    library,
    with_sections,
)
from tests.support.wheel_sets import (
    PJRT_LIBRARY,
    PLUGIN_LIBRARIES,
    TARGETS,
    SetWheel,
    make_wheels,
    pjrt,
    plugin,
    set_wheel,
)
from tests.support.whole_code import Edit as ElfEdit
from tests.support.whole_code import (
    descriptor,
    metadata,
    put,
    section_bytes,
    segment,
    whole_code,
)
from tests.unit.gate_table.model import Row, Scene, folder_of
from wheelkit.elf import constants
from wheelkit.elf.elf_tables import ElfImage
from wheelkit.gpu import offload_bundle as bundle
from wheelkit.gpu.registration import registered_kernels

GATE = "coverage"
ADD = "_Z3addPfS_"
MUL = "_Z3mulPfS_"
ONE_TARGET = ("gfx942",)


@dataclass
class Covered:
    """A set with one wheel that may be broken.

    Attributes:
        made: the wheel.
        promised: library -> targets in wheels.json.
        targets: targets of the set.
        debug: symbol table of the pjrt library beside the wheels; empty for none.
    """

    made: MadeWheel
    promised: dict[str, Sequence[str]]
    targets: Sequence[str] = TARGETS
    debug: bytes = b""


def _judge(covered: Covered, folder: Path) -> Iterable[Finding]:
    made = covered.made
    wheel = set_wheel(made, folder_of(folder, "w"), covered.promised)
    others = [
        other
        for other in _others(tuple(covered.targets))
        if other.wheel.name != wheel.wheel.name
    ]
    more = {}
    if covered.debug:
        more[
            f"debug/{wheel.wheel.filename.removesuffix('.whl')}/{PJRT_LIBRARY}.debug"
        ] = covered.debug
    return gate_findings(
        folder,
        coverage_gate.GATE,
        [wheel, *others],
        more=more,
        python_versions=("3.12",),
        targets=covered.targets,
    )


@functools.cache
def _others(targets: tuple[str, ...]) -> Sequence[SetWheel]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if targets == TARGETS:
            return make_wheels(folder, pythons=("3.12",))
        wheels = [
            (pjrt(targets=targets), [PJRT_LIBRARY]),
            (plugin(targets=targets), PLUGIN_LIBRARIES),
        ]
        return [
            set_wheel(made, folder, dict.fromkeys(paths, targets))
            for made, paths in wheels
        ]


PJRT = Scene(lambda _: Covered(pjrt(), {PJRT_LIBRARY: TARGETS}), _judge)
PLUGIN = Scene(
    lambda _: Covered(plugin(), dict.fromkeys(PLUGIN_LIBRARIES, TARGETS)), _judge
)
KERNELS = Scene(
    lambda _: Covered(clean_kernels(), {OBJECT: ["gfx942"], OTHER: ["gfx950"]}), _judge
)
Edit = Callable[[Covered], object]


@functools.cache
def _host_library(form: HostForm) -> bytes:
    names = list(form.registered)
    bundles = [kernel_bundle(dict(held)) for held in form.bundles]
    arguments = dict(form.arguments)
    handles = dict(form.handles)
    groups = [names] if len(bundles) == 1 else [[name] for name in names]
    more: dict[str, Any] = {"nameless": form.nameless}
    if arguments:
        more |= {"arguments": arguments}
    if handles:
        more |= {"handles": handles}
    with tempfile.TemporaryDirectory() as folder:
        return HostCode(groups, **more).library(Path(folder), bundles)


@dataclass(frozen=True)
class HostForm:
    """Kernels that a library registers, and kernels in its bundles by target."""

    registered: tuple[str, ...] = (ADD, MUL)
    bundles: tuple[tuple[tuple[str, tuple[str, ...]], ...], ...] = (
        tuple((t, (ADD, MUL)) for t in TARGETS),
    )
    arguments: tuple[tuple[str, int], ...] = ()
    handles: tuple[tuple[str, str], ...] = ()
    nameless: int = 0


def _registering(form: HostForm) -> Covered:
    made = pjrt()
    made.files[PJRT_LIBRARY] = _host_library(form)
    return Covered(made, {PJRT_LIBRARY: TARGETS})


HOST = Scene(lambda _: _registering(HostForm()), _judge)


def host(**changes: Any) -> Edit:
    """Change the kernels that the library registers, or those in its bundles."""
    return lambda _: _registering(replace(HostForm(), **changes))


def code(data: bytes, path: str = PJRT_LIBRARY) -> Edit:
    """Replace a library."""
    return lambda covered: covered.made.files.update({path: data})


def damaged_bundle(covered: Covered) -> None:
    data = bytearray(covered.made.files[PJRT_LIBRARY])
    data[data.index(b"CCOB") + 24] ^= 1  # the hash in the header
    covered.made.files[PJRT_LIBRARY] = bytes(data)


def unregistered(change: Callable[[bytearray, ElfImage], object]) -> Edit:
    """Break the registration of the device code."""

    def edit(covered: Covered) -> None:
        data = bytearray(covered.made.files[PJRT_LIBRARY])
        change(data, ElfImage.parse(bytes(data), "library"))
        covered.made.files[PJRT_LIBRARY] = bytes(data)

    return edit


def wrapper(at: int, form: str, value: int) -> Edit:
    """Overwrite a field of the first wrapper of a bundle."""

    def change(data: bytearray, image: ElfImage) -> None:
        segment = image.section(".hipFatBinSegment")
        assert segment is not None
        struct.pack_into(f"<{form}", data, segment.offset + at, value)

    return unregistered(change)


def no_constructors(data: bytearray, image: ElfImage) -> None:
    entry = next(
        entry for entry in image.dynamic() if entry.tag == constants.DT_INIT_ARRAYSZ
    )
    constants.DYNAMIC.pack_into(data, entry.offset, entry.tag, 0)


def no_wrappers(data: bytearray, _: ElfImage) -> None:
    data[data.index(b".hipFatBinSegment")] = ord("_")


def missing_library(covered: Covered) -> None:
    del covered.made.files[PLUGIN_LIBRARIES[1]]
    del covered.promised[PLUGIN_LIBRARIES[1]]


def unpromised_library(covered: Covered) -> None:
    covered.made.files["jax_rocm7_plugin/_sparse.so"] = hip_library(
        GLIBC, fatbins=[fat_binary()]
    )


def other_symbols(covered: Covered) -> Covered:
    """Let the symbol table beside the wheels name the handle of a kernel after another kernel."""
    changed = _registering(HostForm(arguments=((ADD, 3), (MUL, 3))))
    data = changed.made.files[PJRT_LIBRARY]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.so"
        path.write_bytes(data)
        handles = registered_kernels(path)[0].handles
    symbol = struct.pack(
        "<IBBHQQ",
        1,
        constants.STT_OBJECT,
        0,
        1,
        handles[ADD],
        8,
    )
    tables = (
        (".symtab", 2, 0, bytes(24) + symbol),
        (".strtab", 3, 0, b"\0" + MUL.encode() + b"\0"),
    )
    return replace(changed, debug=with_sections(data, *tables))


def openmp_entry(covered: Covered) -> None:
    parts = [("openmp-amdgcn-amd-amdhsa--gfx942", whole_code())]
    packed = bundle.pack(bundle.build(parts))
    other = packed + bytes(-len(packed) % 4096)
    covered.made.files[PJRT_LIBRARY] = hip_library(fatbins=[fat_binary(TARGETS), other])


def kernel_object(data: bytes) -> Edit:
    """Replace a code object of kernels, with its digest in the manifest."""

    def edit(covered: Covered) -> None:
        covered.made.files[OBJECT] = data
        tell(covered.made)

    return edit


def broken(edit: ElfEdit) -> bytes:
    """Return a changed code object."""
    data = bytearray(whole_code("gfx942", ("a",)))
    edit(data)
    return bytes(data)


def bundled(data: bytes) -> Edit:
    """Replace the code object for gfx942 in the library's bundle."""
    codes = {"gfx942": data, "gfx950": whole_code("gfx950")}
    parts = [
        (f"hipv4-amdgcn-amd-amdhsa--{target}", content)
        for target, content in codes.items()
    ]
    return code(hip_library(fatbins=[bundle.build(parts)]))


CODE_OF_GFX950 = whole_code("gfx942").replace(b"\x4c\0\x80\xbf", b"\x4f\0\x80\xbf")

_CODE_EDITS: list[tuple[str, str, ElfEdit]] = [
    ("kernel-descriptor-wrong", "zeros", descriptor(0, "64s", bytes(64))),
    ("kernel-descriptor-wrong", "no machine code", descriptor(16, "q", 0)),
    (
        "kernel-descriptor-wrong",
        "machine code not executable",
        segment(1, 4, "I", 4, flags=5),
    ),
    (
        "code-object-damaged",
        "no metadata",
        section_bytes(".note", lambda note: note[:8] + b"\x21" + note[9:]),
    ),
    (
        "code-object-damaged",
        "no msgpack",
        section_bytes(".note", lambda note: note[:20].ljust(len(note), b"\xc1")),
    ),
    (
        "code-object-damaged",
        "kernel without a symbol",
        metadata(lambda about: about["amdhsa.kernels"][0].pop(".symbol")),
    ),
    (
        "code-object-wrong",
        "metadata of another gfx",
        metadata(
            lambda about: about.update({"amdhsa.target": "amdgcn-amd-amdhsa--gfx90a"})
        ),
    ),
    ("code-object-damaged", "unknown ABI", put(8, "B", 9)),
    ("code-object-damaged", "ABI of V2", put(8, "B", 0)),
]


def kernels_for_one_target(covered: Covered) -> None:
    tell(covered.made, targets=["gfx942"])


def exchanged_promises(covered: Covered) -> None:
    covered.promised = {OBJECT: ["gfx950"], OTHER: ["gfx950"]}


def damaged_manifest(covered: Covered) -> None:
    covered.made.files[MANIFEST] = b"{"


LACKING = ((("gfx942", (ADD, MUL)), ("gfx950", (ADD,))),)
EXCHANGED = tuple(tuple((target, (name,)) for target in TARGETS) for name in (MUL, ADD))

_EDITS: list[tuple[str, str, Scene, Edit]] = [
    ("target-missing", "library without code", PJRT, code(library(GLIBC))),
    (
        "target-missing",
        "code for one target",
        PJRT,
        code(hip_library(GLIBC, fatbins=[fat_binary(ONE_TARGET)])),
    ),
    ("target-missing", "required library missing", PLUGIN, missing_library),
    ("target-missing", "kernels for one target", KERNELS, kernels_for_one_target),
    (
        "target-extra",
        "gfx1100",
        PJRT,
        code(hip_library(fatbins=[fat_binary((*TARGETS, "gfx1100"))])),
    ),
    ("wheels-json-untrue", "unpromised library", PLUGIN, unpromised_library),
    ("wheels-json-untrue", "targets of code objects", KERNELS, exchanged_promises),
    ("bundle-damaged", "wrong digest", PJRT, damaged_bundle),
    ("target-extra", "openmp", PJRT, openmp_entry),
    (
        "code-object-wrong",
        "gfx942 as gfx950",
        PJRT,
        code(hip_library(fatbins=[fat_binary(TARGETS, machs={"gfx950": 0x4C})])),
    ),
    ("code-object-wrong", "machine code of gfx950", PJRT, bundled(CODE_OF_GFX950)),
    (
        "code-object-wrong",
        "no GPU has ECC off",
        PJRT,
        code(hip_library(fatbins=[fat_binary(["gfx942:sramecc-", "gfx950"])])),
    ),
    (
        "code-object-wrong",
        "object of another target",
        KERNELS,
        kernel_object(whole_code("gfx950", ("a",))),
    ),
    *(
        (finding, fault, KERNELS, kernel_object(broken(edit)))
        for finding, fault, edit in _CODE_EDITS
    ),
    (
        "kernel-descriptor-wrong",
        "zeros in a bundle",
        PJRT,
        bundled(broken(descriptor(0, "64s", bytes(64)))),
    ),
    ("kernels-manifest-damaged", "no JSON", KERNELS, damaged_manifest),
    ("registration-missing", "no constructor", PJRT, unregistered(no_constructors)),
    ("registration-missing", "no wrappers", PJRT, unregistered(no_wrappers)),
    ("registration-missing", "magic of the wrapper", PJRT, wrapper(0, "I", 0x48495044)),
    ("registration-missing", "version of the wrapper", PJRT, wrapper(4, "I", 3)),
    ("registration-missing", "pointer of the wrapper", PJRT, wrapper(8, "Q", 0)),
    ("registration-missing", "kernel not registered", HOST, host(registered=(ADD,))),
    (
        "registration-wrong",
        "kernel registered twice",
        HOST,
        host(registered=(ADD, ADD, MUL)),
    ),
    (
        "registration-wrong",
        "kernels exchanged",
        HOST,
        host(arguments=((ADD, 3), (MUL, 2)), handles=((ADD, MUL), (MUL, ADD))),
    ),
    ("registration-wrong", "bundles exchanged", HOST, host(bundles=EXCHANGED)),
    ("registration-wrong", "symbol of another kernel", HOST, other_symbols),
    ("kernel-missing", "for one target", HOST, host(bundles=LACKING)),
    (
        "kernel-missing",
        "generic code of one kernel",
        HOST,
        host(bundles=((("gfx9-4-generic", (ADD,)),),)),
    ),
    ("kernels-unread", "names of kernels", HOST, host(nameless=2)),
]
ROWS = [Row(GATE, code_, fault, scene, edit) for code_, fault, scene, edit in _EDITS]
