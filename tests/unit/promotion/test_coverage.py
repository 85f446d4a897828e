"""The coverage gate: members that must have code, kernels that host code registers, targets that XLA refuses."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.errors import RequestError
from core.model import Evidence, Outcome, Severity
from promotion.gates.common.runs import run_gates
from promotion.gates.coverage import gate as coverage_gate
from promotion.gates.coverage import kernel_rules
from promotion.set_report import code_size
from promotion.stage import stage
from promotion.storage.directory_bucket import DirBucket
from tests.support.faults.code_objects import CODE_FAULTS
from tests.support.gating import messages, stage_wheels
from tests.support.host_code import HostCode, kernel_bundle
from tests.support.made_kernels import OBJECT, OTHER, clean_kernels, manifest, tell
from tests.support.made_wheel import (
    GLIBC,
    MACHS,
    MadeWheel,
    code_object,
    fat_binary,
    hip_library,
    library,
    with_sections,
)
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
from tests.support.whole_code import whole_code
from wheelkit.elf import constants
from wheelkit.elf.reader import ElfImage
from wheelkit.gpu import bundle
from wheelkit.gpu.registration import registered_kernels

JAX_AITER = "jax_aiter-1.2.3-py3-none-manylinux_2_28_x86_64.whl"
ADD, MUL = "_Z3addPfS_", "_Z3mulPfS_"
MORI, WAVE32, WAVE64 = (
    "_ZN4mori10collective18AllToAllPushKernelEii",
    "_ZN7rocprim17ROCPRIM_400500_NS6detail1xNS0_4arch9wavefront6targetE0EEEvT1_",
    "_ZN7rocprim17ROCPRIM_400500_NS6detail1xNS0_4arch9wavefront6targetE1EEEvT1_",
)


def judge(folder: Path, *wheels: SetWheel, **changes: Any) -> dict[str, Evidence]:
    """Return the evidence by target for a set in which the given wheels replace those of their projects."""
    names = {wheel.wheel.name for wheel in wheels}
    others = [w for w in make_wheels(folder / "others", pythons=("3.12",)) if w.wheel.name not in names]
    bucket, staged = stage_wheels(folder, [*wheels, *others], python_versions=("3.12",), **changes)
    return {e.target: e for e in run_gates(bucket, staged, [coverage_gate.GATE], NoProcesses(), Silent())}


def told(evidence: Evidence, severity: Severity = Severity.ERROR) -> list[str]:
    return messages(evidence.findings, severity)


def with_code(folder: Path, made: MadeWheel, paths: Sequence[str], targets: Sequence[str] = TARGETS) -> SetWheel:
    """Return a wheel for which wheels.json promises code for these targets in these libraries."""
    (folder / "w").mkdir()
    return set_wheel(made, folder / "w", dict.fromkeys(paths, targets))


def damaged_bundle() -> bytes:
    data = bytearray(pjrt().files[PJRT_LIBRARY])
    data[data.index(b"CCOB") + 24] ^= 1  # the hash in the header
    return bytes(data)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (library(GLIBC), "has no code for {target}"),
        (damaged_bundle(), "bundle-damaged"),
        (hip_library(GLIBC, fatbins=[fat_binary(TARGETS, machs={"gfx950": 0x4C})]), "code-object-wrong"),
    ],
)
def test_library_with_other_code_than_promised_fails(tmp_path: Path, content: bytes, text: str) -> None:
    made = pjrt()
    made.files[PJRT_LIBRARY] = content
    for target, evidence in judge(tmp_path, with_code(tmp_path, made, [PJRT_LIBRARY])).items():
        assert any(text.format(target=target) in line for line in told(evidence)), told(evidence)


def test_unpromised_code_fails(tmp_path: Path) -> None:
    made = plugin()
    made.files["jax_rocm7_plugin/_sparse.so"] = hip_library(GLIBC, fatbins=[fat_binary()])
    found = told(judge(tmp_path, with_code(tmp_path, made, PLUGIN_LIBRARIES))["gfx942"])
    assert any("_sparse.so has code for gfx942, gfx950; wheels.json has nothing" in text for text in found)


def test_promised_target_without_code_fails(tmp_path: Path) -> None:
    made = plugin()
    made.files[PLUGIN_LIBRARIES[0]] = hip_library(GLIBC, fatbins=[fat_binary(["gfx942"])])
    found = judge(tmp_path, with_code(tmp_path, made, PLUGIN_LIBRARIES))
    assert found["gfx950"].outcome is Outcome.FAILED
    assert found["gfx950"].counts["failed"] == 1
    assert any("_linalg.so has no code for gfx950" in text for text in told(found["gfx950"]))
    assert found["gfx942"].outcome is Outcome.FAILED, "the library is not what wheels.json says"
    assert not any("no code for gfx942" in text for text in told(found["gfx942"]))


def test_missing_promised_library_fails(tmp_path: Path) -> None:
    wheel = with_code(tmp_path, pjrt(), [PJRT_LIBRARY])
    ghost = replace(wheel.wheel.members[0], path="jax_plugins/xla_rocm7/ghost.so")
    wheel = replace(wheel, wheel=replace(wheel.wheel, members=(*wheel.wheel.members, ghost)))
    assert any("ghost.so has no code for gfx942" in text for text in told(judge(tmp_path, wheel)["gfx942"]))


def test_unrequested_target_fails(tmp_path: Path) -> None:
    targets = (*TARGETS, "gfx1100")
    found = judge(tmp_path, with_code(tmp_path, pjrt(targets=targets), [PJRT_LIBRARY], targets))
    for target in TARGETS:
        assert any("target-extra" in text and "code for gfx1100" in text for text in told(found[target]))


def test_generic_code_covers_its_targets(tmp_path: Path) -> None:
    targets = ("gfx9-4-generic",)
    found = judge(tmp_path, with_code(tmp_path, pjrt(targets=targets), [PJRT_LIBRARY], targets))
    assert told(found["gfx942"]) == told(found["gfx950"]) == []


def test_set_without_device_code_is_an_error(tmp_path: Path) -> None:
    (wheel,) = [w for w in make_wheels(tmp_path / "w", pythons=("3.12",)) if w.wheel.name == "jaxlib"]
    found = run_gates(*stage_wheels(tmp_path, [wheel]), [coverage_gate.GATE], NoProcesses(), Silent())
    assert [evidence.outcome for evidence in found] == [Outcome.ERROR] * 2
    assert "found nothing to check" in found[0].findings[0].message


def with_kernels(folder: Path, held: Mapping[str, Sequence[str]], registered: Sequence[str], **form: Any) -> SetWheel:
    """Return a pjrt wheel whose library has one bundle."""
    made = pjrt()
    made.files[PJRT_LIBRARY] = HostCode([registered], **form).library(folder, [kernel_bundle(held)])
    return with_code(folder, made, [PJRT_LIBRARY], tuple(held))


def test_complete_kernels_pass(tmp_path: Path) -> None:
    wheel = with_kernels(tmp_path, {"gfx942": [ADD, MUL, "rocprim_other"], "gfx950": [ADD, MUL]}, [ADD, MUL])
    found = judge(tmp_path, wheel)
    assert [evidence.findings for evidence in found.values()] == [(), ()]
    details = {check["name"]: check for check in found["gfx942"].details["checks"]}
    assert details[f"{wheel.wheel.filename}: {PJRT_LIBRARY}"]["kernels"] == 2


@pytest.mark.parametrize("helper", [False, True])
def test_kernel_without_code_for_target_is_an_error(tmp_path: Path, helper: bool) -> None:
    held = {"gfx942": [ADD, MUL], "gfx950": [ADD]}
    found = judge(tmp_path, with_kernels(tmp_path, held, [ADD, MUL], helper=helper))
    assert told(found["gfx942"]) == []
    (text,) = told(found["gfx950"])
    assert text.startswith("kernel-missing: jax_rocm7_pjrt-")
    assert text.endswith(f"{PJRT_LIBRARY} has no code for gfx950 of 1 registered kernel: {MUL}.")


def test_kernels_registered_with_bundles_of_others_are_an_error(tmp_path: Path) -> None:
    made = pjrt()
    bundles = [kernel_bundle({target: [name] for target in TARGETS}) for name in (MUL, ADD)]
    made.files[PJRT_LIBRARY] = HostCode([[ADD], [MUL]]).library(tmp_path, bundles)
    for target, evidence in judge(tmp_path, with_code(tmp_path, made, [PJRT_LIBRARY])).items():
        (text,) = told(evidence)
        assert text.startswith("registration-wrong: jax_rocm7_pjrt-")
        assert f"names another bundle than that with the {target} code of 2 registered kernels: " in text


MHA = "jax_aiter/_kernels/lib/libmha_fwd.so"
FOR_GFX9, FOR_GFX950 = (
    f"_ZN7ck_tile6kentryILi2ENS_{len(tag)}{tag}ENS_13FmhaFwdKernelEEEvv" for tag in ("gfx9_t", "gfx950_t")
)


def with_attention(folder: Path, targets: Sequence[str], *held: Mapping[str, Sequence[str]]) -> SetWheel:
    """Return a wheel of kernel modules with two registered bundles of attention: for gfx9 and for gfx950."""
    made = clean_kernels()
    bundles = [kernel_bundle(one) for one in held]
    made.files[MHA] = HostCode([[FOR_GFX9], [FOR_GFX950]]).library(folder, bundles)
    body = manifest(made.files)
    entry = {"kind": "ffi-shim", "library": "lib/libmha_fwd.so", "sha256": hashlib.sha256(made.files[MHA]).hexdigest()}
    body["modules"]["mha_fwd"] = entry | {"needs": [], "targets": list(targets), "ffi": [], "objects": {}}
    tell(made, modules=body["modules"], load_order=["gemm", "mha_fwd"])
    (folder / "w").mkdir()
    return set_wheel(made, folder / "w", {OBJECT: ("gfx942",), OTHER: ("gfx950",), MHA: tuple(targets)})


@pytest.mark.parametrize(
    ("targets", "held", "lost"),
    [
        (("gfx942",), ({"gfx942": [FOR_GFX9]}, {}), {}),
        (("gfx942", "gfx950"), ({"gfx942": [FOR_GFX9]}, {"gfx950": [FOR_GFX950]}), {}),
        (("gfx942",), ({"gfx942": []}, {}), {"gfx942": FOR_GFX9}),
        (("gfx942", "gfx950"), ({"gfx942": [FOR_GFX9]}, {"gfx950": []}), {"gfx950": FOR_GFX950}),
    ],
)
def test_attention_kernels_are_required_by_kind(
    tmp_path: Path, targets: Sequence[str], held: Sequence[Mapping[str, Sequence[str]]], lost: Mapping[str, str]
) -> None:
    found = judge(tmp_path, with_attention(tmp_path, targets, *held))
    assert {target: told(evidence) for target, evidence in found.items()} == {
        target: [f"kernel-missing: {JAX_AITER}: {MHA} has no code for {target} of 1 registered kernel: {lost[target]}."]
        if target in lost
        else []
        for target in TARGETS
    }
    checks = {check["name"] for check in found["gfx950"].details["checks"]}
    assert (f"{JAX_AITER}: {MHA}" in checks) is ("gfx950" in targets)


def test_finding_names_first_kernels(tmp_path: Path) -> None:
    names = [f"_Z2k{n}v" for n in range(9)]
    found = judge(tmp_path, with_kernels(tmp_path, {"gfx942": names, "gfx950": []}, names))
    assert "of 9 registered kernels: _Z2k0v, _Z2k1v, _Z2k2v, ...." in told(found["gfx950"])[0]


def test_generic_kernels_cover_their_targets(tmp_path: Path) -> None:
    wheel = with_kernels(tmp_path, {"gfx9-4-generic": [ADD]}, [ADD, MUL])
    for evidence in judge(tmp_path, wheel).values():
        assert [text.endswith(f"of 1 registered kernel: {MUL}.") for text in told(evidence)] == [True]


def test_unknown_host_code_is_a_warning(tmp_path: Path) -> None:
    wheel = with_kernels(tmp_path, {"gfx942": [ADD], "gfx950": [ADD]}, [ADD], nameless=3)
    evidence = judge(tmp_path, wheel)["gfx942"]
    assert evidence.outcome is Outcome.PASSED
    (warning,) = told(evidence, Severity.WARNING)
    assert warning.startswith("kernels-unread: ")
    assert "the names of 3 kernels" in warning


# Kernels that not every target must have


@pytest.mark.parametrize(
    ("kernel", "target", "excused"),
    [
        (MORI, "gfx1100", True), (MORI, "gfx942", False), (MORI, "gfx1250", False), (MORI, "gfx90a:xnack-", True),
        (WAVE32, "gfx942", True), (WAVE32, "gfx1100", False), (WAVE64, "gfx1201", True), (WAVE64, "gfx90a", False),
        (WAVE64, "gfx9-4-generic", False), (WAVE64, "gfx11-generic", True), (ADD, "gfx1100", False),
    ],
)  # fmt: skip
def test_rules_apply_to_jax_0_12_and_rocm_7_14(kernel: str, target: str, excused: bool) -> None:
    wheel_set = make_set([], jax_version="0.12.0", rocm_version="7.14.0")
    rules = kernel_rules.rules_for(kernel_rules.load_rules(), wheel_set, PJRT_LIBRARY)
    assert any(rule.excuses(kernel, target) for rule in rules) is excused


@pytest.mark.parametrize(
    ("jax", "rocm", "member", "count"),
    [
        ("0.12.0", "7.14.0", PJRT_LIBRARY, 3),
        ("0.12.0", "7.14.0", PLUGIN_LIBRARIES[0], 0),
        ("0.12.0", "7.2.0", PJRT_LIBRARY, 1),
        ("0.11.1", "7.12.0", PJRT_LIBRARY, 2),
        ("0.11.1", "7.12.0a20260301", PJRT_LIBRARY, 2),
        ("0.11.1", "7.11.0", PJRT_LIBRARY, 0),
        ("0.10.2", "7.2.0", PJRT_LIBRARY, 0),
        ("0.12.1", "8.0", "jax_plugins/xla_rocm8/xla_rocm_plugin.so", 3),
    ],
)
def test_rules_apply_to_one_library_and_version_range(jax: str, rocm: str, member: str, count: int) -> None:
    wheel_set = make_set([], jax_version=jax, rocm_version=rocm)
    assert len(kernel_rules.rules_for(kernel_rules.load_rules(), wheel_set, member)) == count


def test_gate_applies_kernel_rules(tmp_path: Path) -> None:
    wheel = with_kernels(tmp_path, {"gfx942": [ADD, WAVE64], "gfx950": [ADD, WAVE64]}, [ADD, WAVE32, WAVE64])
    assert told(judge(tmp_path, wheel, jax_version="0.11.0", rocm_version="7.14.0")["gfx942"]) == []
    assert told(judge(tmp_path / "again", wheel, jax_version="0.11.0", rocm_version="7.2.0")["gfx942"]) != []


@pytest.mark.parametrize(
    "text",
    [
        "schema = 2\n[[only]]\n",
        "schema = 1\nonly = []\nother = 1\n",
        'schema = 1\n[[only]]\njax = "0.12"\nmember = "x"\npattern = "x"\ntargets = ["gfx942"]\nreason = "y"\n',
        'schema = 1\n[[only]]\nrocm = "7.12"\nmember = "x"\npattern = "x"\ntargets = ["gfx942"]\nreason = "y"\n',
        'schema = 1\n[[only]]\njax = ">0.12"\nmember = "x"\npattern = "("\ntargets = ["gfx942"]\nreason = "y"\n',
        'schema = 1\n[[only]]\njax = ">0.12"\nmember = "x"\npattern = "x"\ntargets = ["gfx942"]\nreason = ""\n',
        'schema = 1\n[[only]]\njax = ">0.12"\nmember = "x"\npattern = "x"\nreason = "y"\n',
    ],
)
def test_load_rules_refuses_invalid_entries(tmp_path: Path, text: str) -> None:
    (tmp_path / "rules.toml").write_text(text)
    with pytest.raises(RequestError, match=r"Cannot load .*rules\.toml"):
        kernel_rules.load_rules(tmp_path / "rules.toml")


# Members, and XLA


@pytest.mark.parametrize("gone", [False, True])
def test_required_library_without_code_is_an_error(tmp_path: Path, gone: bool) -> None:
    made = plugin()
    made.files[PLUGIN_LIBRARIES[1]] = library()
    if gone:
        del made.files[PLUGIN_LIBRARIES[1]]
    others = [path for path in PLUGIN_LIBRARIES if path != PLUGIN_LIBRARIES[1]]
    found = judge(tmp_path, with_code(tmp_path, made, others))
    for target, evidence in found.items():
        (text,) = told(evidence)
        assert text.startswith("target-missing: jax_rocm7_plugin-")
        assert text.endswith(f"{PLUGIN_LIBRARIES[1]} has no code for {target}.")


def test_target_rejected_by_xla_is_a_warning(tmp_path: Path) -> None:
    targets = ("gfx906", "gfx942")
    (tmp_path / "w").mkdir()
    wheels = [
        set_wheel(pjrt(targets=targets), tmp_path / "w", {PJRT_LIBRARY: targets}),
        set_wheel(plugin(targets=targets), tmp_path / "w", dict.fromkeys(PLUGIN_LIBRARIES, targets)),
    ]
    found = judge(tmp_path, *wheels, targets=targets)
    assert {evidence.outcome for evidence in found.values()} == {Outcome.PASSED}
    assert found["gfx942"].findings == ()
    assert told(found["gfx906"], Severity.WARNING) == [
        "target-refused: XLA rejects gfx906 at run time, so its code cannot be used."
    ]


def test_unreadable_code_object_is_an_error(tmp_path: Path) -> None:
    made = pjrt()
    parts = [(f"hipv4-amdgcn-amd-amdhsa--{target}", code_object(MACHS[target])) for target in TARGETS]  # only headers
    made.files[PJRT_LIBRARY] = HostCode([[ADD]]).library(tmp_path, [bundle.build(parts)])
    evidence = judge(tmp_path, with_code(tmp_path, made, [PJRT_LIBRARY]))["gfx942"]
    assert evidence.outcome is Outcome.FAILED
    place = f"jax_rocm7_pjrt-0.10.2+rocm7.2.0-py3-none-manylinux_2_28_x86_64.whl: {PJRT_LIBRARY}: bundle 0: entry "
    assert any(text.startswith(f"code-object-damaged: {place}") for text in told(evidence)), told(evidence)


def test_nights_read_size_of_device_code_by_target(tmp_path: Path) -> None:
    made = plugin()
    made.files[PLUGIN_LIBRARIES[0]] = hip_library(GLIBC, fatbins=[fat_binary(["gfx942"])])
    found = judge(tmp_path, with_code(tmp_path, made, PLUGIN_LIBRARIES))
    sizes = {target: code_size(evidence) for target, evidence in found.items()}
    assert sizes["gfx942"] > sizes["gfx950"] > 0


def unregistered(data: bytearray, change: str) -> None:
    """Break the registration of the device code in a library."""
    image = ElfImage.parse(bytes(data), "library")
    segment = image.section(".hipFatBinSegment")
    assert segment is not None
    if change == "pointer":
        struct.pack_into("<Q", data, segment.offset + 8, 0)
    elif change == "section":
        data[data.index(b".hipFatBinSegment")] = ord("_")
    elif change in ("magic", "version"):
        data[segment.offset + (4 if change == "version" else 0)] ^= 2
    else:
        tag = constants.DT_INIT_ARRAYSZ if change == "size" else constants.DT_INIT_ARRAY
        entry = next(entry for entry in image.dynamic() if entry.tag == tag)
        constants.DYNAMIC.pack_into(data, entry.offset, tag if change == "size" else constants.DT_DEBUG, 0)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("size", "runs no constructor"),
        ("tag", "runs no constructor"),
        ("magic", "with magic 0x48495044 and version 1"),
        ("version", "with magic 0x48495046 and version 3"),
        ("pointer", "has no wrapper of the bundle at"),
        ("section", "has no wrapper of the bundle at"),
    ],
)
def test_device_code_that_hip_does_not_get_is_an_error(tmp_path: Path, change: str, text: str) -> None:
    made = pjrt()
    data = bytearray(made.files[PJRT_LIBRARY])
    unregistered(data, change)
    made.files[PJRT_LIBRARY] = bytes(data)
    for evidence in judge(tmp_path, with_code(tmp_path, made, [PJRT_LIBRARY])).values():
        found = told(evidence)
        assert any(line.startswith("registration-missing: ") and text in line for line in found), found


def test_kernels_registered_for_others_are_an_error(tmp_path: Path) -> None:
    made, names = pjrt(), [ADD, MUL]
    bundles = [kernel_bundle(dict.fromkeys(TARGETS, names))]
    exchanged = {ADD: MUL, MUL: ADD}
    made.files[PJRT_LIBRARY] = HostCode([names], arguments={ADD: 3, MUL: 2}, handles=exchanged).library(
        tmp_path, bundles
    )
    for evidence in judge(tmp_path, with_code(tmp_path, made, [PJRT_LIBRARY])).values():
        assert [text.partition(": jax_")[0] for text in told(evidence)] == ["registration-wrong"]
        assert f"{PJRT_LIBRARY} launches kernel {ADD} with 2 arguments, but it has 3." in told(evidence)[0]


def test_kernels_are_compared_with_symbol_table_beside_wheel(tmp_path: Path) -> None:
    made, names = pjrt(), [ADD, MUL]
    bundles = [kernel_bundle(dict.fromkeys(TARGETS, names))]
    library = HostCode([names], arguments={ADD: 3, MUL: 3}).library(tmp_path, bundles)
    (tmp_path / "a.so").write_bytes(library)
    handles = registered_kernels(tmp_path / "a.so")[0].handles
    strings = b"\0" + MUL.encode() + b"\0"
    symbol = struct.pack("<IBBHQQ", 1, constants.STT_OBJECT, 0, 1, handles[ADD], 8)
    symbols = with_sections(library, (".symtab", 2, 0, bytes(24) + symbol), (".strtab", 3, 0, strings))
    made.files[PJRT_LIBRARY] = library
    wheel = with_code(tmp_path, made, [PJRT_LIBRARY])
    debug = f"debug/{wheel.wheel.filename.removesuffix('.whl')}/{PJRT_LIBRARY}.debug"
    plain = make_set([wheel], python_versions=("3.12",))
    wheel_set = replace(
        plain,
        files={**plain.files, debug: hashlib.sha256(symbols).hexdigest()},
        file_sizes={**plain.file_sizes, debug: len(symbols)},
    )
    bucket = DirBucket(tmp_path / "bucket")
    staged = stage(bucket, write_set(tmp_path / "set", [wheel], wheel_set, {debug: symbols}))
    for evidence in run_gates(bucket, staged, [coverage_gate.GATE], NoProcesses(), Silent()):
        texts = [text for text in told(evidence) if text.startswith("registration-wrong")]
        assert [text.endswith(f"registers kernel {ADD} for the handle of {MUL}.") for text in texts] == [True]


def test_kernel_that_is_not_registered_is_an_error(tmp_path: Path) -> None:
    wheel = with_kernels(tmp_path, {target: [ADD, MUL] for target in TARGETS}, [ADD])
    for evidence in judge(tmp_path, wheel).values():
        (text,) = told(evidence)
        assert text.startswith("registration-missing: ")
        assert text.endswith(f"{PJRT_LIBRARY} has code of a kernel that it does not register with HIP: {MUL}.")


def test_kernel_registered_twice_is_an_error(tmp_path: Path) -> None:
    wheel = with_kernels(tmp_path, {target: [ADD, MUL] for target in TARGETS}, [ADD, ADD, MUL])
    for evidence in judge(tmp_path, wheel).values():
        (text,) = told(evidence)
        assert text.startswith("registration-wrong: jax_rocm7_pjrt-")
        assert text.endswith(f"{PJRT_LIBRARY} registers kernel {ADD} twice.")


@pytest.mark.parametrize("code", ["code-object-damaged", "kernel-descriptor-wrong", "kernel-metadata-wrong"])
def test_broken_code_object_is_an_error(tmp_path: Path, code: str) -> None:
    fault = next(fault for fault in CODE_FAULTS if fault.code == code)
    broken = bytearray(whole_code("gfx942"))
    fault.edit(broken)
    parts = [(f"hipv4-amdgcn-amd-amdhsa--{t}", bytes(broken) if t == "gfx942" else whole_code(t)) for t in TARGETS]
    made = pjrt()
    made.files[PJRT_LIBRARY] = hip_library(fatbins=[bundle.build(parts)])
    evidence = judge(tmp_path, with_code(tmp_path, made, [PJRT_LIBRARY]))["gfx942"]
    assert any(line.startswith(f"{code}: jax_rocm7_pjrt-") for line in told(evidence)), told(evidence)
