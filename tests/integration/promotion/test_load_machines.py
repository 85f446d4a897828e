"""Simulated machines of the load gate.

The loader of this project in a jax that asks it as the real one does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from promotion.gates.load.child_probe import _CHILD
from promotion.gates.load.machines import (
    MACHINE_CHILD,
    as_json,
    machine_problems,
    machines,
    machines_of_majors,
)
from tests.support.fake_site import HIP, loader_site

PJRT = "jax_plugins/xla_rocm7"
PLUGIN = "jax_rocm7_plugin"
FAKES = {
    "jax/__init__.py": """
import importlib, logging, os, pkgutil, types
from jaxlib import plugin_support
from jax._src import xla_bridge
config = types.SimpleNamespace(jax_platforms=os.environ["JAX_PLATFORMS"])
def devices(platform=""):
    import jax_plugins
    if config.jax_platforms == "cpu":
        return ["cpu"]
    found = pkgutil.iter_modules(jax_plugins.__path__, "jax_plugins.")
    for name in sorted(row.name for row in found):
        try:
            importlib.import_module(name).initialize()
        except Exception:
            text = "Jax plugin configuration error"
            logging.getLogger("jax._src.xla_bridge").exception(text)
    if "rocm" not in xla_bridge._backend_factories:
        raise RuntimeError("Unknown backend rocm")
    xla_bridge._backend_factories["rocm"].factory()
""",
    "jax/_src/__init__.py": "",
    "jax/_src/xla_bridge.py": """
import ctypes, types
_backend_factories = {}
def register_backend_factory(name, factory, *, priority, **_):
    _backend_factories[name] = types.SimpleNamespace(factory=factory, priority=priority)
def register_plugin(name, *, priority, library_path, options):
    ctypes.CDLL("libamdhip64.so.7").hipGetDeviceCount
    register_backend_factory(name, start, priority=priority)
def start():
    raise RuntimeError("FAILED_PRECONDITION: No visible GPU devices.")
""",
    "jax/_src/lib/__init__.py": "from . import xla_client",
    "jax/_src/lib/xla_client.py": """
def generate_pjrt_gpu_plugin_options():
    return {}
def __getattr__(name):
    return lambda *args, **named: None
""",
    "jaxlib/version.py": "__version__ = '0.10.2'\n",
    "jaxlib/plugin_support.py": """
import importlib
_PLUGIN_MODULE_NAMES = {"rocm": LISTED}
for name in ("_linalg", "_prng", "_solver", "_hybrid", "_sparse"):
    for package in LISTED:
        try:
            importlib.import_module(f"{package}.{name}")
            break
        except ImportError:
            continue
""",
}
"""A jax that registers and starts plugins, and a jaxlib that imports its modules early."""
EXTENSION = """
def ffi_types():
    return {"Type": {}}
def ffi_handlers():
    return {"handler": 1}
def __getattr__(name):
    return lambda *args, **named: {}
"""
RECORDED = json.loads(
    Path(__file__).parents[2].joinpath("data/jaxlib_rocm_majors.json").read_text()
)
MODULES = ("_linalg", "_prng", "_solver", "_hybrid", "_sparse")


class Site:
    """Packages of a Python: both wheels' Python files, a fake jax and jaxlib, and stubs of ROCm."""

    def __init__(
        self,
        folder: Path,
        rocm: str,
        needed: Sequence[str],
        listed: Sequence[str],
    ) -> None:
        self.site = folder / "site"
        self.rocm = folder / "rocm"
        self.work = folder / "work"
        self.version = rocm
        major = int(rocm.partition(".")[0])
        plugin = f"jax_rocm{major}_plugin"
        files = {
            f"{plugin}/{name}.py": "def registrations(): return {}" for name in MODULES
        }
        files |= FAKES | {f"{plugin}/rocm_plugin_extension.py": EXTENSION}
        support = "jaxlib/plugin_support.py"
        files[support] = files[support].replace("LISTED", str(list(listed)))
        loader_site(self.site, self.rocm, files, major=major, needed=needed)

    def replace(
        self,
        file: str,
        old: str,
        new: str,
    ) -> None:
        text = (self.site / file).read_text()
        assert old in text
        (self.site / file).write_text(text.replace(old, new))

    def problems(self) -> Mapping[str, list[str]]:
        """Return problem -> machines."""
        names = ["gfx942", "gfx950"]
        known = (names, self.version, self.rocm, self.work)
        rows = tuple(machines(*known))
        with suppress(ValueError):
            rows += tuple(machines_of_majors(*known, self.site))
        argv = [
            sys.executable,
            str(MACHINE_CHILD),
            "machines",
            str(self.work),
            as_json(rows, self.version),
        ]
        env = {**os.environ, "PYTHONPATH": str(self.site), "LD_LIBRARY_PATH": ""}
        done = subprocess.run(
            argv, env=env, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        answers: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
        assert {*answers} == {row.about for row in rows}
        return machine_problems(rows, answers)


NEWEST = RECORDED["0.12.0"]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path, "7.14.0", NEWEST["needed"]["7"]["pjrt"], NEWEST["modules"])


JAXLIBS = [
    ("7.2.0", (HIP,), [PLUGIN, "jax_rocm60_plugin"]),
    ("7.2.0", (HIP,), RECORDED["0.11.2"]["modules"]),
    (
        "7.14.0",
        RECORDED["0.12.0"]["needed"]["7"]["pjrt"],
        RECORDED["0.12.0"]["modules"],
    ),
    (
        "10.0.0",
        RECORDED["0.12.0"]["needed"]["10"]["pjrt"],
        RECORDED["0.12.0"]["modules"],
    ),
]
"""ROCm of a set, its needs, and the list of a jaxlib."""


@pytest.mark.parametrize("jaxlib", JAXLIBS)
def test_good_loader_answers_as_each_machine_requires(
    tmp_path: Path, jaxlib: tuple[str, Sequence[str], Sequence[str]]
) -> None:
    made = Site(tmp_path, *jaxlib)
    assert made.problems() == {}


ONE = "one gfx942"
SEVERAL = "several GPUs (gfx942, gfx950, gfx908)"
FOREIGN = "a GPU that the set is not for (gfx908)"
OLDER = "an older ROCm (libamdhip64.so.6)"
LACKING = "a libamdhip64.so.7 without the set's symbols"
GPU = "no GPU and JAX_PLATFORMS=gpu"
CPU = "no GPU and JAX_PLATFORMS=cpu"
PACKAGES = "a ROCm of Python packages"
SYSTEM = "a ROCm in /opt/rocm"
VARIABLE = "a ROCm in LD_LIBRARY_PATH"
WITH_GPU = {
    ONE,
    SEVERAL,
    FOREIGN,
    PACKAGES,
    SYSTEM,
    VARIABLE,
    "no ROCm",
    OLDER,
    LACKING,
}
OWN_ON_10 = "wheels for ROCm 7 and ROCm 10"
OWN_ON_BOTH = "wheels for ROCm 7 and ROCm 7 and 10"
TWO = "wheels for ROCm 7 and 10 and "
TWO_ON_7 = f"{TWO}ROCm 7"
TWO_ON_BOTH = f"{TWO}ROCm 7 and 10"
UNUSABLE = "unusable wheels of others for ROCm 10"
MAJORS = {OWN_ON_10, OWN_ON_BOTH, TWO_ON_7, TWO_ON_BOTH, UNUSABLE}
MAJORS |= {f"{TWO}ROCm 10", f"{TWO}no ROCm"}
STARTED = {OWN_ON_BOTH, TWO_ON_7, TWO_ON_BOTH, f"{TWO}ROCm 10"}


DIAGNOSIS = f"{PJRT}/_diagnosis.py"
PROBLEMS = f"{PJRT}/_problems.py"
REGISTER = f"{PJRT}/_register.py"
ROCM = f"{PJRT}/_rocm.py"
FAKE_BRIDGE = "jax/_src/xla_bridge.py"
WRONG: list[tuple[tuple[str, str, str], set[str], str]] = [
    (
        (DIAGNOSIS, "accepted = info.get(", "accepted = info.got("),
        {*WITH_GPU, *MAJORS},
        "has no attribute 'got'",
    ),
    (
        (
            PROBLEMS,
            '"gpu-unusable": (\n        WARNING',
            '"gpu-unusable": (\n        NOTE',
        ),
        {SEVERAL},
        "gfx908 only",
    ),
    (
        (
            PROBLEMS,
            '"gpu-not-in-wheel": (\n        ERROR',
            '"gpu-not-in-wheel": (\n        NOTE',
        ),
        {FOREIGN},
        "should name the reason",
    ),
    # openxla/xla#8679, ROCm/xla#142 and ROCm/TheRock#8163.
    (
        (ROCM, "PLUGIN_INTERNAL_LLD_PATH", "LLD_PATH"),
        {ONE, PACKAGES, SYSTEM, OWN_ON_BOTH, TWO_ON_7, TWO_ON_BOTH},
        "JAX_ROCM_PLUGIN_INTERNAL_LLD_PATH",
    ),
    (
        (ROCM, 'BITCODE_FOLDERS = ("lib/llvm/amdgcn/bitcode", ', "BITCODE_FOLDERS = ("),
        {ONE, PACKAGES, SYSTEM, OWN_ON_BOTH, TWO_ON_7, TWO_ON_BOTH},
        "JAX_ROCM_PLUGIN_INTERNAL_BITCODE_PATH",
    ),
    ((ROCM, 'ROOT / "opt/rocm"', 'ROOT / "rocm"'), {SYSTEM}, "BITCODE_PATH to /opt"),
    ((ROCM, '"LD_LIBRARY_PATH"', '"LIBRARY_PATH"'), {VARIABLE}, HIP),
    # ROCm/rocm-jax#130.
    (
        (
            f"{PJRT}/_versions.py",
            "    if have is None:",
            "    if 'post' in version: return False\n    if have is None:",
        ),
        {*WITH_GPU, *MAJORS, "no GPU", GPU, CPU},
        "should accept a jaxlib.post1",
    ),
    (
        (REGISTER, "extension.ffi_types().items()", "()"),
        {ONE, SEVERAL, PACKAGES, SYSTEM, VARIABLE, *STARTED},
        "jax should get Type",
    ),
    (
        (ROCM, '"_rocm_sdk_core"', '"rocm"'),
        {PACKAGES, OWN_ON_BOTH, TWO_ON_7, TWO_ON_BOTH},
        HIP,
    ),
    (
        (ROCM, "(_CORE, _LIBRARIES, *(", "(_CORE, *("),
        {PACKAGES},
        "_rocm_sdk_core does not fit",
    ),
    (
        (ROCM, "for family in families)", "for family in ())"),
        {TWO_ON_7},
        "_rocm_sdk_core does not fit",
    ),
    (
        (f"{PLUGIN}/__init__.py", "_refuse_if_only_another_is_usable()\nwith", "with"),
        {TWO_ON_7},
        "jaxlib has loaded the modules of ROCm 10",
    ),
    (
        (DIAGNOSIS, "if not loaded or", "if True or"),
        {UNUSABLE},
        "jax-rocm10-plugin jax-rocm10-pjrt",
    ),
    (
        (DIAGNOSIS, 'f"rocm-sdk-device-{gpu}" not in', 'f"rocm-sdk-{gpu}" not in'),
        {PACKAGES},
        "the loader should not warn",
    ),
    (
        (FAKE_BRIDGE, ".hipGetDeviceCount", ""),
        {LACKING},
        "should name the reason",
    ),
    (
        (
            "jax/__init__.py",
            '(platform=""):',
            '(platform=""):\n    import ctypes; ctypes.string_at(0)',
        ),
        {*WITH_GPU, *MAJORS, "no GPU", GPU, CPU},
        "SIGSEGV",
    ),
    (("jax/__init__.py", 'return ["cpu"]', "return []"), {CPU}, "should have devices"),
]


@pytest.mark.parametrize(("change", "names", "says"), WRONG)
def test_wrong_loader_is_named_with_its_machine(
    site: Site, change: tuple[str, str, str], names: set[str], says: str
) -> None:
    site.replace(*change)
    found = site.problems()
    assert {*chain.from_iterable(found.values())} == names
    assert says in " ".join(found)


def test_damaged_build_information_is_named(site: Site) -> None:
    (site.site / PJRT / "build_info.json").write_text("{")
    (problem,) = [text for text, names in site.problems().items() if ONE in names]
    assert "jax should start ROCm" in problem
    assert "build_info.json cannot be read" in problem


HIDE = """
import ctypes, os, runpy, sys
child, load = runpy.run_path(sys.argv[1]), ctypes._dlopen
child["hide"](["libanl.so.1"])
try:
    ctypes.CDLL("libanl.so.1")
except OSError:
    print("hidden")
load("libanl.so.1", os.RTLD_NOW)
ctypes.CDLL("libanl.so.1")
print("loaded")
"""


def test_library_of_the_system_is_hidden_until_it_is_loaded() -> None:
    """libanl belongs to glibc.

    A ROCm in the system's folders must not change the answers of the machines.
    """
    argv = [sys.executable, "-c", HIDE, str(MACHINE_CHILD)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "hidden\nloaded\n", done.stderr


# Packages


def packages(
    site: Site,
    package: str,
    project: str,
    *modules: str,
) -> dict[str, Any]:
    """Return the answer of the probe of a package."""
    info = site.site / f"{project.replace('-', '_')}-0.10.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Name: {project}\nVersion: 0.10.2\nRequires-Dist: jaxlib>=0.10.2\n"
    )
    argv = [
        sys.executable,
        str(_CHILD),
        "package",
        package,
        project,
        package,
        f"{package}.build_info",
        *modules,
    ]
    env = {**os.environ, "PYTHONPATH": str(site.site)}
    done = subprocess.run(
        argv, env=env, capture_output=True, text=True, check=False, timeout=60
    )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_package_probe_returns_values(site: Site) -> None:
    answer = packages(site, PLUGIN, "jax-rocm7-plugin")
    assert answer["version"] == answer["info"]["version"] == "0.10.2+rocm7.2.0"
    assert answer["metadata"] == {"version": "0.10.2", "requires": ["jaxlib>=0.10.2"]}
    assert list(answer["modules"].values()) == ["", ""]


def test_package_probe_returns_errors_of_imports(site: Site) -> None:
    (site.site / PLUGIN / "wrong.py").write_text("raise SystemExit('no')\n")
    answer = packages(site, PLUGIN, "jax-rocm7-plugin", f"{PLUGIN}.wrong")
    assert answer["modules"][f"{PLUGIN}.wrong"] == "SystemExit: no"
