from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from tests.support.fake_site import PLUGIN_NEEDED, ROOT, build_info, install, kfd_tree

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
        self.site.mkdir()
        (self.site / "jaxlib").mkdir()
        self.jaxlib("0.10.2")
        self.install()
        self.gpus(MI300)

    def jaxlib(self, version: str) -> None:
        (self.site / "jaxlib/version.py").write_text(f"__version__ = {version!r}\n")

    def install(self, major: int = 7, *, plugin: bool = True, **changes: Any) -> None:
        """Install the packages of a major version; `plugin` is whether to include the plugin."""
        package = install(self.site, "pjrt", major, build_info(**changes))
        (package / "xla_rocm_plugin.so").touch()
        shutil.rmtree(self.site / f"jax_rocm{major}_plugin", ignore_errors=True)
        if plugin:
            install(self.site, "plugin", major, build_info(PLUGIN_NEEDED, targets=()))

    def load(self, name: str, major: int = 7) -> ModuleType:
        """Import one of the loader's modules so that it examines this fake machine."""
        package = f"jax_plugins.xla_rocm{major}"
        gpus: Any = importlib.import_module(f"{package}._gpus")
        gpus.NODES = self.folder / "nodes"
        gpus.KFD = self.folder / "kfd"
        gpus.DXG = self.folder / "dxg"
        rocm: Any = importlib.import_module(f"{package}._rocm")
        rocm.OPT_ROCM = self.folder / "opt/rocm"
        return importlib.import_module(f"{package}{name}")

    def gpus(self, *gpus: dict[str, int]) -> None:
        """Set the GPUs of the machine, and create the device kfd if there is a GPU."""
        shutil.rmtree(self.folder / "nodes", ignore_errors=True)
        (self.folder / "kfd").unlink(missing_ok=True)
        if gpus:
            kfd_tree(self.folder / "nodes", *gpus)
            (self.folder / "kfd").touch()

    def reasons(self, major: int = 7, *, need_gpu: bool = True) -> tuple[str, ...]:
        found: tuple[str, ...] = self.load("._diagnose", major).reasons(
            need_gpu=need_gpu
        )
        return found

    def acting(self, *, need_gpu: bool = True) -> list[int]:
        """Return the active major version, as reported by each of two installed ones."""
        return [
            self.load("._majors", own).acting_major(own, need_gpu=need_gpu)
            for own in (7, 10)
        ]

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


def test_wsl_has_one_gpu_of_unknown_kind(machine: Machine) -> None:
    machine.gpus()
    (machine.folder / "dxg").touch()
    assert [gpu.name for gpu in machine.load("._gpus").installed()] == [""]
    assert machine.reasons() == ()  # no /dev/kfd there, and no target to compare


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


@pytest.mark.parametrize(
    ("targets", "gpu"),
    [
        (["gfx942", "gfx950"], MI300),
        (["gfx942", "gfx11-generic"], PHOENIX),  # covered by generic code
        (["gfx90a:sramecc+:xnack-"], MI200),  # features do not count
    ],
)
def test_working_machine_has_no_reason(
    machine: Machine, targets: list[str], gpu: dict[str, int]
) -> None:
    machine.install(targets=targets)
    machine.gpus(gpu)
    assert machine.reasons() == ()


def test_no_gpu(machine: Machine) -> None:
    machine.install(needed=["libmissing.so.7"])
    machine.gpus()
    [text] = machine.reasons()
    assert "no AMD GPU was found" in text
    assert f"{machine.folder}/nodes" in text
    assert f"{machine.folder}/dxg" in text
    assert "--device=/dev/kfd" in text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda _: os.environ.update(HIP_VISIBLE_DEVICES="-1"),
            [
                (
                    "gfx942 was found, but is hidden by HIP_VISIBLE_DEVICES=-1. Unset"
                    " HIP_VISIBLE_DEVICES."
                )
            ],
        ),
        (
            lambda machine: machine.gpus(PHOENIX),
            [
                "GPU gfx1103 is not among this wheel's targets (gfx942, gfx950)",
                "python3 build/ci_build release --local --targets=gfx1103.",
            ],
        ),
        (
            lambda machine: (
                machine.install(targets=["gfx942", "gfx906"]),
                machine.gpus(OLD),
            ),
            ["XLA of jax 0.10.2 does not accept GPU gfx906. It accepts gfx90a, gfx942"],
        ),
        (
            lambda machine: (machine.site / "jaxlib/version.py").write_text(
                "raise ImportError('broken')"
            ),
            ["jaxlib cannot be imported (broken)"],
        ),
        (
            lambda machine: machine.install(plugin=False),
            ["jax-rocm7-plugin is not installed"],
        ),
        (
            lambda machine: install(
                machine.site, "plugin", 7, build_info(version="0.10.1+rocm7.2.0")
            ),
            [
                (
                    "jax-rocm7-plugin 0.10.1+rocm7.2.0 is installed, but the versions must"
                    " be equal"
                )
            ],
        ),
        (
            lambda machine: (
                machine.site / "jax_plugins/xla_rocm7/xla_rocm_plugin.so"
            ).unlink(),
            ["xla_rocm_plugin.so is missing"],
        ),
    ],
)
def test_single_problem_is_the_reason(
    machine: Machine,
    change: Callable[[Machine], object],
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    change(machine)
    [text] = machine.reasons()
    assert [part for part in said if part not in text] == []


def test_closed_kfd_is_a_reason(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    diagnose = machine.load("._diagnose")
    monkeypatch.setattr(
        os,
        "access",
        lambda path, mode: not (mode & os.W_OK and path == machine.folder / "kfd"),
    )
    assert (
        "kfd may not be opened. Join the groups render and video"
        in diagnose.reasons()[0]
    )
    (machine.folder / "kfd").unlink()
    assert "kfd does not exist" in diagnose.reasons()[0]


def test_unimportable_plugin_module_is_advice(machine: Machine) -> None:
    for soname in PLUGIN_NEEDED:
        machine.library(f"opt/rocm/lib/{soname}")
    plugin = machine.site / "jax_rocm7_plugin"
    for name in ("_linalg", "_prng", "_solver", "_hybrid", "_sparse"):
        (plugin / f"{name}.py").touch()
    diagnose = machine.load("._diagnose")
    monkeypatched: Any = diagnose._rocm
    monkeypatched.preload = lambda *args, **words: None
    assert diagnose.advice() == ()
    sys.modules.pop("jax_rocm7_plugin._solver")
    (plugin / "_solver.py").write_text(
        "raise ImportError('undefined symbol: hipMalloc')"
    )
    importlib.invalidate_caches()
    [text] = diagnose.advice()
    assert (
        "jax_rocm7_plugin._solver cannot be imported (undefined symbol: hipMalloc)."
        in text
    )


@pytest.mark.parametrize(
    ("installed", "good"), [("0.10.2", True), ("0.10.2.post1", True), ("0.12.0", False)]
)
def test_jaxlib_of_other_version(machine: Machine, installed: str, good: bool) -> None:
    machine.jaxlib(installed)
    found = machine.reasons()
    assert (found == ()) == good
    if not good:
        assert (
            f"it requires jaxlib >=0.10.2,<0.10.3, but jaxlib {installed} is installed"
            in found[0]
        )


def test_all_reasons_in_one_text(machine: Machine) -> None:
    machine.install(plugin=False, needed=["libmissing.so.7"])
    machine.gpus(PHOENIX)
    machine.jaxlib("0.9.1")
    found = machine.reasons()
    assert len(found) == 4
    text = machine.load("._diagnose").sentence(found)
    assert text.startswith(
        "jax-rocm7-pjrt 0.10.2+rocm7.2.0 cannot use ROCm: it requires jaxlib"
    )
    assert text.count(" Also: ") == 3


# ROCm


def test_missing_libraries_with_searched_folders(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.install(needed=["libhere.so.1", "libgone.so.7", "liblost.so.2"])
    machine.library("site/_rocm_sdk_core/lib/libhere.so.1")
    machine.library("prefix/lib64/libgone.so.6")
    monkeypatch.setenv("ROCM_PATH", str(machine.folder / "prefix"))
    [text] = machine.reasons()
    assert "libgone.so.7, liblost.so.2 are missing; searched: rocm-sdk wheels" in text
    assert f"{machine.folder}/site/_rocm_sdk_core/lib" in text
    assert f"ROCM_PATH={machine.folder}/prefix ({machine.folder}/prefix/lib64)" in text
    assert f"{machine.folder}/opt/rocm (not there)" in text
    assert (
        f"Another ROCm release has {machine.folder}/prefix/lib64/libgone.so.6." in text
    )
    assert "Install ROCm 7.2.0" in text
    assert "libhere" not in text
    monkeypatch.delenv("ROCM_PATH")
    assert "; ROCM_PATH (not set); " in machine.reasons()[0]


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
    assert "libhere.so.1 is missing" in machine.reasons()[0]
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
        assert rocm.find("libhere.so.1", rocm.layouts()) == file
        file.unlink()
    assert rocm.find("libhere.so.1", rocm.layouts()) is None


def test_preload_skips_libraries_of_linker(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def preload(*sonames: str, runpath: str) -> list[str]:
        calls: list[str] = []
        rocm = machine.load("._rocm")
        monkeypatch.setattr(rocm.ctypes, "CDLL", calls.append)
        rocm.preload(
            sonames,
            rocm.layouts(),
            runpath=runpath,
            origin=machine.site / "jax_plugins/xla_rocm7",
        )
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
    rocm.set_variables(rocm.layouts(), environ)
    assert environ == {}
    machine.library("opt/rocm/lib/llvm/bin/ld.lld")
    machine.library("opt/rocm/amdgcn/bitcode/ocml.bc")
    rocm.set_variables(rocm.layouts(), environ)
    bitcode = f"{machine.folder}/opt/rocm/amdgcn/bitcode"
    assert environ == {
        "JAX_ROCM_PLUGIN_INTERNAL_BITCODE_PATH": bitcode,
        "HIP_DEVICE_LIB_PATH": bitcode,
        "JAX_ROCM_PLUGIN_INTERNAL_LLD_PATH": f"{machine.folder}/opt/rocm/lib/llvm/bin",
    }


def test_variables_never_name_a_compiler_from_ld_library_path(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    rocm = machine.load("._rocm")
    machine.library("ld/llvm/bin/ld.lld")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(machine.folder / "ld"))
    environ: dict[str, str] = {}
    rocm.set_variables(rocm.layouts(), environ)
    assert environ == {}


# Majors


def test_each_major_looks_for_its_own_plugin(machine: Machine) -> None:
    machine.install(10, plugin=False)
    assert machine.reasons(7) == ()
    assert "jax-rocm10-plugin is not installed" in machine.reasons(10)[0]
    machine.install(10)
    assert machine.reasons(10) == ()
    with pytest.raises(ImportError, match="is not named like"):
        machine.load("._majors").own_major("jax_plugins.other")


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
    ("rocm", "gpus"), [(7, [MI300]), (7, []), (10, [MI300]), (10, [])]
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


def test_unusable_loaded_major_does_not_act(
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
    assert machine.acting() == [7, 7]


# Build information


def test_build_info_can_be_read_from_both_packages(machine: Machine) -> None:
    machine.install(
        targets=["gfx950", "gfx942"],
        inputs=[{"filename": "a.whl", "sha256": "0" * 64}],
        tools={"python": "3.11"},
    )
    info = importlib.import_module("jax_plugins.xla_rocm7.build_info")
    assert info.VERSION == "0.10.2+rocm7.2.0"
    assert info.TARGETS == ("gfx942", "gfx950")
    assert info.INPUTS[0]["filename"] == "a.whl"
    assert info.TOOLS == {"python": "3.11"}
    plugin = importlib.import_module("jax_rocm7_plugin.build_info")
    assert plugin.needed() == PLUGIN_NEEDED
    assert plugin.DATA["rocm_version"] == plugin.ROCM_VERSION == "7.2.0"


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
    releases = ("1", "1.2", "1.2.0", "1.10", "2!1")
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
    clauses = [
        *map(
            "".join,
            itertools.product((">=", "<=", ">", "<", "==", "!="), releases, suffixes),
        ),
        *(
            "~=1.2",
            "~=1.2.3",
            "==1.2.*",
            "!=1.2.*",
            "==1.*",
            "==1.2+local.1",
            "!=1.2+local.2",
        ),
    ]
    wrong = []
    for clause in clauses:
        for version in versions:
            if accepts(clause, version) is not SpecifierSet(clause).contains(
                version, prereleases=True
            ):
                wrong.append((clause, version))
    assert wrong == []
