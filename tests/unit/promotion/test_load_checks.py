"""Checks of the load gate, without running probes."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard

from core.errors import BucketError, CiBuildError, MachineError
from promotion.gates.common.site import NO_DEVICE
from promotion.gates.load import gate as load_gate
from promotion.gates.load import load_child
from promotion.gates.load.checks import PJRT, PLUGIN, LoadChecks, WheelLibrary
from promotion.gates.load.child_probe import ProbeResult, how_it_ended
from promotion.gates.load.machines import Machine, as_json, check_machines, machines
from promotion.gates.load.packages import modules_of
from tests.support.sets import wheel, wheel_set
from wheelkit.elf import constants
from wheelkit.elf.reader import ElfImage

LIBRARY = WheelLibrary(
    wheel=wheel("jax_rocm7_pjrt-1-py3-none-any.whl", "jax-rocm7-pjrt", "1"),
    path="jax_plugins/xla_rocm7/xla_rocm_plugin.so",
)
SENTENCE = "jax-rocm7-pjrt 0.10.2 cannot use ROCm: no AMD GPU was found (looked at /dev/kfd). Load the driver."

NO_GPU = "FAILED_PRECONDITION: No visible GPU devices."


def machine(**changes: Any) -> Machine:
    return Machine(**{"about": "a machine", "gpus": ("gfx942",), "rocm": Path("/rocm"), **changes})


@pytest.mark.parametrize(
    ("said", "good"),
    [
        ("FAILED_PRECONDITION: No visible GPU devices.", True),
        ("FAILED_PRECONDITION: No visible GPU devices", True),
        ("INTERNAL: No visible GPU devices.", False),
        ("FAILED_PRECONDITION: No visible GPU devices. And more", False),
        ("", False),
    ],
)
def test_no_device_matches_exact_error(said: str, good: bool) -> None:
    assert bool(NO_DEVICE.fullmatch(said)) == good


@pytest.mark.parametrize("kind", [MachineError, BucketError])
def test_load_gate_does_not_blame_the_set_for_the_machine(
    kind: type[CiBuildError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_site(*_: object) -> None:
        raise kind("The package index does not answer.")

    monkeypatch.setattr(load_gate, "make_site", make_site)
    context: Any = SimpleNamespace(wheel_set=wheel_set(), pythons=lambda: {"3.12": Path("python3.12")})
    with pytest.raises(kind, match="does not answer"):
        list(load_gate.make_gate().run(context))


SEVERAL = machine(gpus=("gfx942", "gfx1100"), unusable=("gfx1100",))
POOR = "GPU gfx1100 cannot run this wheel; hide such GPUs with HIP_VISIBLE_DEVICES."


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        (machine(), {"error": NO_GPU}),
        (machine(), {"devices": 8}),
        (machine(), {"error": NO_GPU, "preferred": "rocm"}),
        (machine(), {"error": NO_GPU, "skew": "it requires jaxlib 0.12, but jaxlib 0.0.1 is installed."}),
        (SEVERAL, {"error": NO_GPU, "warnings": ["small /dev/shm", POOR]}),
        (machine(refusal=()), {"error": f"Backend 'rocm' failed to initialize: {SENTENCE}"}),
        (machine(refusal=("/dev/kfd",)), {"error": SENTENCE}),
    ],
)
def test_check_machines_accepts_right_answers(row: Machine, answer: dict[str, object]) -> None:
    assert list(check_machines("pjrt.whl", [row], {row.about: answer})) == []


def test_check_machines_misses_no_answer() -> None:
    assert [finding.code for finding in check_machines("w", [machine()], {})] == ["loader-wrong"]


@pytest.fixture
def rocm(tmp_path: Path) -> Path:
    (tmp_path / "rocm/lib").mkdir(parents=True)
    (tmp_path / "rocm/lib/libamdhip64.so.7").touch()
    return tmp_path / "rocm"


def test_machines_cover_what_users_have(rocm: Path, tmp_path: Path) -> None:
    rows = {row.about: row for row in machines(["gfx942", "gfx11-generic"], "7.2.0", rocm, tmp_path / "work")}
    one, several, foreign, none, packages, without, older, lacking, gpu, cpu = rows.values()
    assert (one.gpus, one.refusal) == (("gfx942",), None)
    assert (one.rocm / "lib/libamdhip64.so.7").is_file()  # type: ignore[operator]
    assert {"gfx942", "gfx1100", "gfx1103", "gfx908"} <= {*several.gpus}
    assert several.gpus.count("gfx942") == 64
    assert several.unusable == foreign.gpus == foreign.refusal == ("gfx908",)
    assert (none.gpus, none.refusal) == ((), ())
    assert (packages.rocm, packages.refusal) == (None, None)
    assert (packages.packages / "_rocm_sdk_core/lib/libamdhip64.so.7").is_file()  # type: ignore[operator]
    assert (without.rocm, without.packages, without.refusal) == (None, None, ("libamdhip64.so.7",))
    assert Path(older.refusal[0]).is_relative_to(older.rocm)  # type: ignore[index,arg-type]
    assert (lacking.rocm / "lib/libamdhip64.so.7").stat().st_size  # type: ignore[operator]
    assert [(row.platforms, row.gpus, row.refusal) for row in (gpu, cpu)] == [("gpu", (), ()), ("cpu", (), None)]
    (row,) = list(json.loads(as_json([one], "7.2.0")).values())
    assert row["gpus"][0]["gfx_target_version"] == 90402
    assert "libamdhip64.so.7" in row["hidden"]


@pytest.mark.parametrize("about", ["one gfx942", "a ROCm of Python packages"])
def test_check_machines_wants_locations_of_bitcode_and_linker(rocm: Path, tmp_path: Path, about: str) -> None:
    rows = {row.about: row for row in machines(["gfx942"], "7.2.0", rocm, tmp_path / "work")}
    row = rows[about]
    prefix = row.rocm or row.packages / "_rocm_sdk_core"  # type: ignore[operator]
    good = {
        "JAX_ROCM_PLUGIN_INTERNAL_BITCODE_PATH": f"{prefix}/lib/llvm/amdgcn/bitcode",
        "JAX_ROCM_PLUGIN_INTERNAL_LLD_PATH": f"{prefix}/lib/llvm/bin",
        "HIP_DEVICE_LIB_PATH": f"{prefix}/lib/llvm/amdgcn/bitcode",
    }
    for name in ("", *good):
        variables = {key: value for key, value in good.items() if key != name}
        found = list(check_machines("w", [row], {about: {"error": NO_GPU, "variables": variables}}))
        assert [name in finding.message for finding in found] == [True] * bool(name)


def test_machines_for_targets_that_xla_refuses_expect_refusal(rocm: Path, tmp_path: Path) -> None:
    rows = list(machines(["gfx906"], "7.2.0", rocm, tmp_path / "work"))
    assert [row.refusal for row in rows] == [("gfx906",), ("gfx908",), (), (), None]


def fast_math(data: bytearray) -> None:
    """Overwrite the last constructor of a library by that of crtfastmath.o: stmxcsr, or, ldmxcsr, ret."""
    image = ElfImage.parse(bytes(data), "library")
    array, table = image.section(".init_array"), image.section(".rela.dyn")
    assert array is not None
    assert table is not None
    constructors = [
        addend
        for place, _, addend in constants.RELA.iter_unpack(image.contents(table))
        if array.address <= place < array.address + array.size
    ]
    code = bytes.fromhex("0fae5c24fc814c24fc408000000fae5424fcc3")
    start = image.offset_of(constructors[-1])
    data[start : start + len(code)] = code


def test_dlopen_names_library_that_flushes_denormals(tmp_path: Path) -> None:
    good = next(Path(zstandard.__file__).parent.glob("backend_c.*.so"))
    data = bytearray(good.read_bytes())
    fast_math(data)
    bad = tmp_path / "bad.so"
    bad.write_bytes(data)
    with ThreadPoolExecutor(1) as thread:  # each thread has its own float mode
        assert "flushes" not in thread.submit(load_child.dlopen, str(good)).result()
        assert thread.submit(load_child.dlopen, str(good), str(bad)).result() == {"flushes": str(bad)}

    answer = ProbeResult(values={"flushes": f"/site/{LIBRARY.path}"})
    found = LoadChecks._check_loaded(SimpleNamespace(), [LIBRARY], answer)  # type: ignore[arg-type]
    assert [(item.code, item.member) for item in found] == [("load-flags-wrong", LIBRARY.path)]


# Packages


def test_modules_of_lists_every_module_but_excused_ones() -> None:
    names = [
        "jax_plugins/xla_rocm7/__init__.py",
        "jax_plugins/xla_rocm7/_gpus.py",
        "jax_plugins/xla_rocm7/_register.py",
    ]
    names += ["jax_plugins/xla_rocm7/xla_rocm_plugin.so", "x-1.dist-info/licenses/setup.py", "a/b-c.py"]
    assert modules_of(names) == ("jax_plugins.xla_rocm7", "jax_plugins.xla_rocm7._gpus")
    assert modules_of(["jax_plugins/xla_rocm10/_register.py"]) == ()


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("jax_rocm7_plugin/_solver.so", ("jax_rocm7_plugin", "_solver")),
        ("jax_rocm10_plugin/_rnn.cpython-312-x86_64-linux-gnu.so", ("jax_rocm10_plugin", "_rnn")),
        ("jax_plugins/xla_rocm10/xla_rocm_plugin.so", ("xla_rocm10", "xla_rocm_plugin")),
        ("jaxlib/libjax_common.so", None),
        ("jax_rocm7_plugin/sub/_solver.so", None),
    ],
)
def test_patterns_match_plugin_and_pjrt_paths(path: str, found: tuple[str, str] | None) -> None:
    match = PLUGIN.fullmatch(path) or PJRT.fullmatch(path)
    assert (match.groups() if match else None) == found


@pytest.mark.parametrize(
    ("returncode", "words"),
    [(-8, "signal SIGFPE"), (-6, "signal SIGABRT"), (127, "exit code 127"), (-50, "signal 50")],
)
def test_how_it_ended_names_signals(returncode: int, words: str) -> None:
    assert how_it_ended(returncode) == words
