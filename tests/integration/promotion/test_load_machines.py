"""Simulated machines of the load gate.

The loader of this project in a jax that asks it as the real one does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from core.model import Finding
from promotion.gates.load.child_probe import _CHILD
from promotion.gates.load.machines import (
    MACHINE_CHILD,
    as_json,
    check_machines,
    machines,
)
from tests.support.fake_site import HIP, loader_site

PJRT = "jax_plugins/xla_rocm7"
PLUGIN = "jax_rocm7_plugin"
WHEEL = f"pjrt.whl: {PJRT}/xla_rocm_plugin.so"
FAKE_JAX = """
import ctypes, importlib, logging, os
importlib.import_module("jax_rocm7_plugin")  # jaxlib does this
def devices(platform=""):
    asked = os.environ["JAX_PLATFORMS"]
    if asked == "cpu":
        return ["cpu"]
    platform = platform or asked
    loader = importlib.import_module("jax_plugins.xla_rocm7")
    diagnosis = loader._diagnosis
    facts = loader._facts.here(7)[7]
    try:
        problem = next(diagnosis.errors(facts), None)
    except Exception:
        logging.getLogger("jax._src.xla_bridge").exception("Jax plugin configuration error")
        raise RuntimeError(f"Unknown backend {platform}")
    if not problem:
        diagnosis._rocm.set_variables(facts.layouts)
        diagnosis._rocm.preload(facts.info, facts.layouts, facts.library.parent)
        try:
            ctypes.CDLL("libamdhip64.so.7").hipGetDeviceCount
        except (OSError, AttributeError) as error:
            problem = diagnosis.not_loadable(facts, error)
    if problem:
        raise RuntimeError(f"Backend '{platform}' failed to initialize: {loader._sentence(problem)}")
    for item in diagnosis.problems(facts):
        if item.severity == "warning":
            loader.logger.warning("%s", item)
    raise RuntimeError("FAILED_PRECONDITION: No visible GPU devices.")
"""


class Site:
    """Packages of a Python: both wheels' Python files, a fake jax and jaxlib, and stubs of ROCm."""

    def __init__(self, folder: Path) -> None:
        self.site = folder / "site"
        self.rocm = folder / "rocm"
        self.work = folder / "work"
        modules = ("_linalg", "_prng", "_solver", "_hybrid", "_sparse")
        files = dict.fromkeys((f"{PLUGIN}/{name}.py" for name in modules), "")
        files |= {
            "jax/__init__.py": FAKE_JAX,
            "jaxlib/version.py": "__version__ = '0.10.2'\n",
        }
        loader_site(self.site, self.rocm, files)

    def replace(self, file: str, old: str, new: str) -> None:
        text = (self.site / file).read_text()
        assert old in text
        (self.site / file).write_text(text.replace(old, new))

    def findings(self) -> list[Finding]:
        rows = tuple(machines(["gfx942", "gfx950"], "7.2.0", self.rocm, self.work))
        argv = [
            sys.executable,
            str(MACHINE_CHILD),
            "machines",
            str(self.work),
            as_json(rows, "7.2.0"),
        ]
        env = {**os.environ, "PYTHONPATH": str(self.site), "LD_LIBRARY_PATH": ""}
        done = subprocess.run(
            argv, env=env, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        answers: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
        assert len(answers) == 10
        return list(check_machines(WHEEL, rows, answers))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_good_loader_answers_as_each_machine_requires(site: Site) -> None:
    assert site.findings() == []


ONE = "one gfx942"
SEVERAL = "several GPUs (gfx942, gfx950, gfx908)"
FOREIGN = "a GPU that the set is not for (gfx908)"
OLDER = "an older ROCm (libamdhip64.so.6)"
LACKING = "a libamdhip64.so.7 without the set's symbols"
GPU = "no GPU and JAX_PLATFORMS=gpu"
CPU = "no GPU and JAX_PLATFORMS=cpu"
PACKAGES = "a ROCm of Python packages"
WITH_GPU = {ONE, SEVERAL, FOREIGN, PACKAGES, "no ROCm", OLDER, LACKING}


DIAGNOSIS = f"{PJRT}/_diagnosis.py"
PROBLEMS = f"{PJRT}/_problems.py"
ROCM = f"{PJRT}/_rocm.py"
WRONG: list[tuple[tuple[str, str, str], set[str], str]] = [
    (
        (DIAGNOSIS, "accepted = info.get(", "accepted = info.got("),
        WITH_GPU,
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
        {ONE, PACKAGES},
        "JAX_ROCM_PLUGIN_INTERNAL_LLD_PATH",
    ),
    ((ROCM, '"_rocm_sdk_core"', '"rocm"'), {PACKAGES}, HIP),
    (
        ("jax/__init__.py", ".hipGetDeviceCount", ""),
        {LACKING},
        "should name the reason",
    ),
    (
        (
            "jax/__init__.py",
            '(platform=""):',
            '(platform=""):\n    ctypes.string_at(0)',
        ),
        {*WITH_GPU, "no GPU", GPU, CPU},
        "SIGSEGV",
    ),
    (("jax/__init__.py", 'return ["cpu"]', "return []"), {CPU}, "should have devices"),
]


@pytest.mark.parametrize(("change", "names", "says"), WRONG)
def test_wrong_loader_is_named_with_its_machine(
    site: Site, change: tuple[str, str, str], names: set[str], says: str
) -> None:
    site.replace(*change)
    found = site.findings()
    messages = " ".join(finding.message for finding in found)
    assert {name for name in names if f"with {name}, " in messages} == names
    assert len(found) == len(names)
    for finding in found:
        assert finding.code == "loader-wrong"
        assert finding.message.startswith(f"{WHEEL}: with ")
        assert says in finding.message


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


def packages(site: Site, package: str, project: str, *modules: str) -> dict[str, Any]:
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
