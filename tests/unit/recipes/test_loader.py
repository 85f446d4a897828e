from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from tests.support.fake_site import (
    PLUGIN_NEEDED,
    ROOT,
    build_info,
    dist_info,
    install,
    kfd_tree,
)

MASKS = (
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "HSA_OVERRIDE_GFX_VERSION",
)
PLACES = ("ROCM_PATH", "LD_LIBRARY_PATH")

MI300 = {"gfx_target_version": 90402, "unique_id": 0x18F1A2B3C4D5E6F7}
PHOENIX = {"gfx_target_version": 110003}
MI200 = {"gfx_target_version": 90010, "unique_id": 0xABC}
OLD = {"gfx_target_version": 90006}


class Machine:
    """A fake machine: its site-packages with all packages, its GPU, its /opt/rocm."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site = folder / "site"
        self.jaxlib("0.10.2")
        dist_info(self.site, "jax", "0.10.2")
        self.install()
        self.gpus(MI300)

    def jaxlib(self, version: str) -> None:
        dist_info(self.site, "jaxlib", version)

    def install(
        self,
        major: int = 7,
        *,
        plugin: bool = True,
        **changes: Any,
    ) -> None:
        """Install the packages of a major version; `plugin` is whether to include the plugin."""
        needed = changes.pop("needed", ())
        install(self.site, "pjrt", major, build_info(needed, **changes))
        if plugin:
            jaxlib = changes.get("requires_jaxlib", ">=0.10.2,<0.10.3")
            plugin_info = build_info(PLUGIN_NEEDED, (), requires_jaxlib=jaxlib)
            install(self.site, "plugin", major, plugin_info)
            return
        shutil.rmtree(self.site / f"jax_rocm{major}_plugin", ignore_errors=True)
        for info in self.site.glob(f"jax_rocm{major}_plugin-*.dist-info"):
            shutil.rmtree(info)

    def load(self, name: str, major: int = 7) -> ModuleType:
        """Import one of the loader's modules so that it examines this fake machine."""
        package = f"jax_plugins.xla_rocm{major}"
        gpus: Any = importlib.import_module(f"{package}._gpus")
        gpus.ROOT = self.folder
        return importlib.import_module(f"{package}{name}")

    def gpus(self, *gpus: dict[str, int]) -> None:
        """Set the GPUs of the machine, and create the device kfd if there is a GPU."""
        shutil.rmtree(self.folder / "sys", ignore_errors=True)
        shutil.rmtree(self.folder / "dev", ignore_errors=True)
        if gpus:
            kfd_tree(self.folder / "sys/class/kfd/kfd/topology/nodes", *gpus)
            self.library("dev/kfd")
            self.library("dev/dri/renderD128")

    def reasons(self, major: int = 7, *, need_gpu: bool = True) -> tuple[str, ...]:
        self.load("._gpus", major)
        found: tuple[str, ...] = self.load("", major).reasons(need_gpu=need_gpu)
        return found

    def acting(self, *, need_gpu: bool = True) -> list[int]:
        """Return the active major version, as reported by each of two installed ones."""
        chosen = []
        for own in (7, 10):
            diagnosis = self.load("._diagnosis", own)
            chosen.append(
                diagnosis.choose(self.load("._facts", own).here(own), need_gpu=need_gpu)
            )
        return chosen

    def layouts(self) -> Any:
        """Return the places where the loader searches for ROCm."""
        return self.load("._facts").here(7)[7].layouts

    def library(self, path: str) -> Path:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        return file


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    def forget() -> None:
        for name in [
            n
            for n in sys.modules
            if n.split(".")[0] in ("jax_plugins", "jaxlib") or n.startswith("jax_rocm")
        ]:
            del sys.modules[name]

    for name in (*MASKS, *PLACES):
        monkeypatch.delenv(name, raising=False)
    forget()
    made = Machine(tmp_path)
    monkeypatch.syspath_prepend(str(made.site))
    yield made
    forget()


# GPUs


def test_installed_lists_nodes_with_simds_in_order(machine: Machine) -> None:
    machine.gpus(*[MI300] * 9, PHOENIX)  # node 10 comes after node 2
    found = machine.load("._gpus").installed()
    assert [gpu.name for gpu in found] == ["gfx942"] * 9 + ["gfx1103"]
    assert found[0].uuid == "GPU-18f1a2b3c4d5e6f7"
    assert found[9].uuid == ""


@pytest.mark.parametrize(
    ("environ", "left", "mask"),
    [
        ({}, ["gfx942", "gfx1103", "gfx90a"], ""),
        ({"ROCR_VISIBLE_DEVICES": "2,0"}, ["gfx90a", "gfx942"], ""),
        ({"ROCR_VISIBLE_DEVICES": "GPU-18F1A2B3C4D5E6F7"}, ["gfx942"], ""),
        ({"HIP_VISIBLE_DEVICES": "-1"}, [], "HIP_VISIBLE_DEVICES=-1"),
        (
            {"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "-1"},
            [],
            "CUDA_VISIBLE_DEVICES=-1",
        ),
        ({"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"}, ["gfx90a"], ""),
        (
            {"ROCR_VISIBLE_DEVICES": "1", "HSA_OVERRIDE_GFX_VERSION": "11.0.0"},
            ["gfx1100"],
            "",
        ),
    ],
)
def test_masks(
    machine: Machine, environ: dict[str, str], left: list[str], mask: str
) -> None:
    machine.gpus(MI300, PHOENIX, MI200)
    gpus = machine.load("._gpus")
    found, why = gpus.visible(gpus.installed(), environ)
    assert ([gpu.name for gpu in found], why) == (left, mask)


# Reasons


def test_loader_reports_the_first_problem_that_the_doctor_prints(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentences: list[str] = []
    register = ModuleType("jax_plugins.xla_rocm7._register")
    vars(register).update(
        asked_platforms=frozenset, is_taken=lambda: False, refuse=sentences.append
    )
    monkeypatch.setitem(sys.modules, register.__name__, register)
    machine.install(plugin=False, needed=["libmissing.so.7"])
    machine.gpus(PHOENIX)
    machine.jaxlib("0.9.1")
    loader = machine.load("")
    loader.initialize()
    diagnosis = machine.load("._diagnosis")
    problems = diagnosis.all_problems(machine.load("._facts").here(7)[7])
    codes = ["not-installed", "misfit", "gpu-not-in-wheel", "rocm-missing"]
    assert [problem.code for problem in problems] == codes
    start = "jax-rocm7-pjrt 0.10.2+rocm7.2.0 cannot use ROCm: "
    assert sentences == [f"{start}{problems[0]}"]
    assert loader.reasons() == tuple(map(str, problems))


def test_compilation_needs_no_gpu_but_fitting_packages(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    machine.gpus()
    assert machine.reasons(need_gpu=False) == ()
    machine.jaxlib("0.12.0")
    (text,) = machine.reasons(need_gpu=False)
    assert "needs jaxlib>=0.10.2,<0.10.3, but jaxlib 0.12.0 is installed" in text


# ROCm


@pytest.mark.parametrize(
    "place",
    [
        "site/_rocm_sdk_libraries/lib64",
        "site/_rocm_sdk_libraries_gfx94X_dcgpu/lib",
        "site/_rocm_sdk_core/lib/rocm_sysdeps/lib",
    ],
)
def test_each_package_of_rocm_is_found(machine: Machine, place: str) -> None:
    machine.install(needed=["libhere.so.1"])
    (text,) = machine.reasons()
    assert "libhere.so.1 is missing" in text
    machine.library(f"{place}/libhere.so.1")
    assert machine.reasons() == ()


def test_order_of_layouts(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    rocm = machine.load("._rocm")
    monkeypatch.setenv("ROCM_PATH", str(machine.folder / "prefix"))
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{machine.folder}/ld:")
    places = [
        "ld",
        "site/_rocm_sdk_core/lib",
        "prefix/lib",
        "prefix/lib64",
        "opt/rocm/lib",
        "opt/rocm/lib64",
    ]
    files = [machine.library(f"{place}/libhere.so.1") for place in places]
    for file in files:
        assert rocm.find("libhere.so.1", machine.layouts()) == file
        file.unlink()
    assert rocm.find("libhere.so.1", machine.layouts()) is None


def test_preload_skips_libraries_of_linker(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def preload(*sonames: str, runpath: str) -> list[str]:
        calls: list[str] = []
        rocm = machine.load("._rocm")
        monkeypatch.setattr(rocm.ctypes, "CDLL", calls.append)
        member = {"needed": sonames}
        info = {"rocm_sonames": sonames, "members": [member], "runpath": runpath}
        origin = machine.site / "jax_plugins/xla_rocm7"
        rocm.preload(info, machine.layouts(), origin)
        return calls

    monkeypatch.setenv("ROCM_PATH", str(machine.folder / "prefix"))
    machine.library("site/_rocm_sdk_core/lib/libone.so.1")
    two = machine.library("prefix/lib/libtwo.so.1")
    three = machine.library("prefix/lib/libthree.so.1")
    machine.library(
        "opt/rocm/lib/libthree.so.1"
    )  # the loader alone would take this one
    runpath = f"$ORIGIN/../../_rocm_sdk_core/lib:{machine.folder}/opt/rocm/lib"
    names = ("libthree.so.1", "libone.so.1", "libtwo.so.1", "libsystem.so.1")
    assert preload(*names, runpath=runpath) == [str(three), str(two)]
    # With another RUNPATH all of them have to be loaded.
    assert len(preload(*names, runpath="")) == 3


def test_variables_name_existing_files_only(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    rocm = machine.load("._rocm")
    environ: dict[str, str] = {}
    (machine.folder / "opt/rocm/lib/llvm/bin").mkdir(parents=True)
    # LD_LIBRARY_PATH never names a compiler.
    machine.library("ld/llvm/bin/ld.lld")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(machine.folder / "ld"))
    rocm.set_variables(machine.layouts(), environ)
    assert environ == {}
    machine.library("opt/rocm/lib/llvm/bin/ld.lld")
    machine.library("opt/rocm/amdgcn/bitcode/ocml.bc")
    rocm.set_variables(machine.layouts(), environ)
    bitcode = f"{machine.folder}/opt/rocm/amdgcn/bitcode"
    assert environ == {
        "JAX_ROCM_PLUGIN_INTERNAL_BITCODE_PATH": bitcode,
        "HIP_DEVICE_LIB_PATH": bitcode,
        "JAX_ROCM_PLUGIN_INTERNAL_LLD_PATH": f"{machine.folder}/opt/rocm/lib/llvm/bin",
    }


# Majors


def test_each_major_looks_for_its_own_plugin(machine: Machine) -> None:
    machine.install(10, plugin=False)
    assert machine.reasons(7) == ()
    assert "Not installed: jax-rocm10-plugin" in machine.reasons(10)[0]
    machine.install(10)
    assert machine.reasons(10) == ()
    with pytest.raises(ImportError, match="is not named like"):
        machine.load("._facts").major_of("jax_plugins.other")


def test_plugin_refuses_to_mix_majors(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        sys.modules,
        "jax_rocm10_plugin._linalg",
        ModuleType("jax_rocm10_plugin._linalg"),
    )
    with pytest.raises(ImportError, match="is already loaded"):
        importlib.import_module("jax_rocm7_plugin")


def test_highest_working_major_acts(machine: Machine) -> None:
    machine.install(10, needed=["libamdhip64.so.10"])
    machine.load("", 10)
    assert machine.acting() == [7, 7]
    machine.library("opt/rocm/lib/libamdhip64.so.10")
    assert machine.acting() == [10, 10]


@pytest.mark.parametrize("broken", [False, True])
def test_major_loaded_by_jaxlib_acts_and_reports(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    machine.install(7, targets=["gfx90a" if broken else "gfx942"])
    machine.install(10, requires_jaxlib="<0.1" if broken else ">=0.10.2,<0.10.3")
    machine.load("", 10)
    monkeypatch.setitem(
        sys.modules, "jax_rocm7_plugin._linalg", ModuleType("jax_rocm7_plugin._linalg")
    )
    assert machine.acting() == [7, 7]


# Module lists of jaxlib (plugin_support._PLUGIN_MODULE_NAMES) and the ROCm libraries
# that the published wheels need.
RECORDED = json.loads((ROOT / "tests/data/jaxlib_rocm_majors.json").read_text())


@pytest.mark.parametrize(
    ("rocm", "gpus"),
    [
        (7, [MI300]),
        (7, []),
        (10, [MI300]),
        (10, []),
    ],
)
@pytest.mark.parametrize("jaxlib", sorted(RECORDED))
def test_jaxlib_list_with_two_majors_loads_the_usable_one(
    machine: Machine, jaxlib: str, rocm: int, gpus: list[dict[str, int]]
) -> None:
    facts = RECORDED[jaxlib]
    machine.jaxlib(jaxlib)
    machine.gpus(*gpus)
    for major in (7, 10):
        machine.install(
            major,
            needed=facts["needed"][str(major)]["pjrt"],
            requires_jaxlib=f"=={jaxlib}",
        )
        (machine.site / f"jax_rocm{major}_plugin/_linalg.py").touch()
        machine.load("", major)
    for soname in facts["needed"][str(rocm)]["pjrt"]:
        machine.library(f"opt/rocm/lib/{soname}")
    assert imported_by_jaxlib(facts["modules"]) == f"jax_rocm{rocm}_plugin._linalg"
    assert machine.acting(need_gpu=bool(gpus)) == [rocm, rocm]
    assert machine.acting() == [rocm, rocm]


def imported_by_jaxlib(modules: list[str]) -> str:
    """Import `_linalg` as jaxlib does, from the first package of its list that has it."""
    for package in modules:
        with contextlib.suppress(ImportError):
            return importlib.import_module(f"{package}._linalg").__name__
    return ""


def test_unusable_loaded_major_blocks_usable_one_and_names_the_command(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.install(10, needed=["libamd_smi.so.27"])
    machine.load("", 10)
    importlib.import_module("jax_rocm7_plugin")
    monkeypatch.setitem(
        sys.modules,
        "jax_rocm10_plugin._linalg",
        ModuleType("jax_rocm10_plugin._linalg"),
    )
    assert machine.acting() == [10, 10]
    diagnosis = machine.load("._diagnosis", 10)
    candidates = machine.load("._facts", 10).here(10)
    reason = next(diagnosis.errors(candidates[10], need_gpu=True))
    blocked = diagnosis.blocked(candidates, 10, reason, need_gpu=True)
    assert blocked.code == "major-blocked"
    assert "libamd_smi.so.27" in blocked.sentence
    assert blocked.remedy.endswith("uninstall jax-rocm10-plugin jax-rocm10-pjrt")
    # A reason is needed: the loaded major may be usable.
    assert diagnosis.blocked(candidates, 10, None, need_gpu=True) is None
    # Without the modules in the process, the usable major acts.
    monkeypatch.delitem(sys.modules, "jax_rocm10_plugin._linalg")
    assert machine.acting() == [7, 7]


def test_unusable_wheels_of_others_block_usable_major(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    diagnosis = machine.load("._diagnosis")
    candidates = machine.load("._facts").here(7)
    assert diagnosis.blocked(candidates, 7, None, need_gpu=True) is None
    name = "jax_rocm10_plugin._linalg"
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert diagnosis.choose(candidates, need_gpu=True) == 7
    blocked = diagnosis.blocked(candidates, 7, None, need_gpu=True)
    assert blocked.code == "major-blocked"
    assert blocked.remedy.endswith("uninstall jax-rocm10-plugin jax-rocm10-pjrt")


# Build information


def test_build_info_can_be_read_from_both_packages(machine: Machine) -> None:
    machine.install(tools={"python": "3.11"})
    info = importlib.import_module("jax_plugins.xla_rocm7.build_info")
    assert info.VERSION == "0.10.2+rocm7.2.0"
    assert info.DATA["tools"] == {"python": "3.11"}
    plugin = importlib.import_module("jax_rocm7_plugin.build_info")
    assert machine.load("._rocm").needed(plugin.DATA) == PLUGIN_NEEDED


@pytest.mark.parametrize("damage", ["gone", "text"])
def test_damaged_build_info_is_an_import_error(machine: Machine, damage: str) -> None:
    for package in ("jax_plugins/xla_rocm7", "jax_rocm7_plugin"):
        file = machine.site / package / "build_info.json"
        file.unlink() if damage == "gone" else file.write_text("{")
        with pytest.raises(
            ImportError,
            match=r"build_info\.json cannot be read .* install the wheel again",
        ):
            importlib.import_module(package.replace("/", "."))


def test_importing_the_loader_does_not_import_jax(machine: Machine) -> None:
    machine.load("")
    assert "jax" not in sys.modules


@pytest.mark.parametrize("gpus", [[MI300], []])
def test_plugin_loads_rocm_from_rocm_path_if_there_is_a_gpu(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, gpus: list[dict[str, int]]
) -> None:
    machine.gpus(*gpus)
    library = machine.library("prefix/lib/libhipblas.so.3")
    monkeypatch.setenv("ROCM_PATH", str(machine.folder / "prefix"))
    calls: list[str] = []
    monkeypatch.setattr(machine.load("._rocm").ctypes, "CDLL", calls.append)
    importlib.import_module("jax_rocm7_plugin")
    assert calls == ([str(library)] if gpus else [])


# Versions


def test_specifiers_agree_with_packaging(machine: Machine) -> None:
    machine.install()
    accepts = machine.load("._versions").accepts
    releases = ("1", "1.2", "1.2.0", "1.10")
    suffixes = (
        "",
        ".dev1",
        "a1",
        "a1.dev2",
        "b2",
        "rc1",
        "rc1.post1",
        ".post1",
        ".post1.dev3",
    )
    versions = [*map("".join, itertools.product(releases, suffixes)), "1.2+local.1"]
    products = itertools.product((">=", "<=", ">", "<", "=="), releases, suffixes)
    clauses = [*map("".join, products), "==1.2.*", "==1.*", "==1.2+local.1"]
    wrong = [
        (clause, version)
        for clause, version in itertools.product(clauses, versions)
        if accepts(clause, version)
        is not SpecifierSet(clause).contains(version, prereleases=True)
    ]
    assert wrong == []
