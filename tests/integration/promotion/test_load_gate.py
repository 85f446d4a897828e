"""The load gate on published wheels: unchanged, broken inside the site, and with an incomplete ROCm.

The wheels are loaded with stubs of ROCm, in separate processes as in the gate.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from core.layouts import allowed_sonames
from core.model import RocmVersion
from core.process import HostRunner
from promotion.gates.common.gate import Check, GateContext
from promotion.gates.common.pythons import find_pythons
from promotion.gates.common.site import RocmLibraries, Site, make_site, rocm_libraries
from promotion.gates.common.stubs import write_stubs
from promotion.gates.load import gate as load_gate
from promotion.gates.load import golden
from promotion.gates.load.checks import LoadChecks
from promotion.gates.load.child_probe import Probe, ProbeResult, run_probe
from tests.support.gating import gate_context, stage_published
from wheelkit.elf.snapshot import Elf
from wheelkit.rocm_manifest import RocmManifest, from_needs

pytestmark = pytest.mark.network

PLUGIN = "jax_rocm7_plugin"
NEWEST = "3.12"
"""JAX 0.12.0 needs this Python; the set is loaded where the machine has it."""


@dataclass(frozen=True)
class Loaded:
    """A published set, its site and its checks."""

    context: GateContext
    site: Site
    rocm: RocmLibraries
    checks: tuple[Check, ...]
    loading: LoadChecks

    def path(self, name: str) -> Path:
        return self.site.folder / name

    def probe(self, function: str, argument: str, name: str, member: str = "", **options: Any) -> ProbeResult:
        own = {key: options.pop(key) for key in ("child",) if key in options}
        look = Probe(function=function, arguments=(argument,), name=name, member=member, **own)
        env = options.pop("env", self.loading.env)
        return run_probe(self.context.runner, self.site, env, look, **options)


@pytest.fixture(scope="session")
def published(
    real_wheel: Callable[..., Path], pinned_python: str, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Loaded]:
    """Return `published(version)`, which adopts, stages and loads a version once."""
    known: dict[str, Loaded] = {}

    def find(version: str) -> Loaded:
        if version not in known:
            python = pinned_python if version == "0.10.2" else NEWEST
            folder = tmp_path_factory.mktemp(f"load-{version}")
            wheels = [real_wheel("jax-rocm7-pjrt", version), real_wheel("jax-rocm7-plugin", version, python)]
            known[version] = _load(folder, wheels, python)
        return known[version]

    return find


@pytest.fixture
def loaded(published: Callable[[str], Loaded]) -> Loaded:
    """Return the published 0.10.2."""
    return published("0.10.2")


def _load(folder: Path, wheels: list[Path], python: str) -> Loaded:
    context = gate_context(folder, *stage_published(folder, wheels), HostRunner(os.environ))
    site = make_site(context, python)
    libraries = rocm_libraries(context, site, None)
    loading = LoadChecks(context, site, libraries)
    return Loaded(context, site, libraries, tuple(loading.run()), loading)


@pytest.mark.parametrize(
    "version", ["0.10.2", "0.12.0"] if find_pythons([NEWEST], HostRunner(os.environ)) else ["0.10.2"]
)
def test_published_wheels_match_golden_lists(published: Callable[[str], Loaded], version: str) -> None:
    loaded = published(version)
    assert [finding for check in loaded.checks for finding in check.findings] == []
    assert all(check.outcome == "passed" for check in loaded.checks)
    names = [check.name for check in loaded.checks]
    assert sum(": dlopen " in name for name in names) == 9
    assert sum(": import " in name and name.endswith(".so") for name in names) == 8
    assert list(load_gate.compare(loaded.loading, golden.ROOT, update=False)) == []


def test_site_is_isolated_from_this_interpreter(loaded: Loaded) -> None:
    site = loaded.site
    code = "import importlib.metadata as m; print(*sorted(d.name for d in m.distributions()))"
    argv = [str(site.python), "-I", "-c", code]
    told = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    assert {"jax", "jaxlib", "jax-rocm7-pjrt", "jax-rocm7-plugin"} <= set(told)
    assert "pytest" not in told
    assert site.env["LD_LIBRARY_PATH"] == ""  # unset, if the user has set it


# An incomplete ROCm


def elfs(loaded: Loaded) -> list[Elf]:
    return [Elf.read(loaded.path(library.path)) for library in loaded.loading.libraries]


def needs(loaded: Loaded) -> RocmManifest:
    rocm = RocmVersion(text=loaded.context.wheel_set.rocm_version)
    return from_needs(elfs(loaded), str(rocm), allowed_sonames(rocm))


def dlopen(loaded: Loaded, manifest: RocmManifest, member: str, folder: Path) -> str:
    """Load a member with the stubs of a manifest and return the error."""
    write_stubs(manifest, folder)
    env = {**loaded.loading.env, "LD_LIBRARY_PATH": f"{folder}/lib", "ROCM_PATH": str(folder)}
    return str(loaded.probe("dlopen", str(loaded.path(member)), member, env=env).values.get("error", ""))


def test_missing_symbol_fails_with_immediate_binding_only(loaded: Loaded, tmp_path: Path) -> None:
    member = f"{PLUGIN}/_solver.so"
    manifest = needs(loaded)
    solver = manifest.libraries["libhipsolver.so.1"]
    symbols = {name: versions for name, versions in solver.symbols.items() if name != "hipsolverSgetrf"}
    lacking = replace(manifest, libraries={**manifest.libraries, solver.soname: replace(solver, symbols=symbols)})
    said = dlopen(loaded, lacking, member, tmp_path)
    assert said.endswith("undefined symbol: hipsolverSgetrf")
    code = f"import os, sys; sys.setdlopenflags(os.RTLD_LAZY); import {PLUGIN}._solver; print('loaded')"
    env = {key: value for key, value in os.environ.items() if key != "LD_BIND_NOW"}
    argv = [str(loaded.site.python), "-I", "-c", code]
    lazy = subprocess.run(
        argv, env={**env, "LD_LIBRARY_PATH": f"{tmp_path}/lib"}, capture_output=True, text=True, check=False
    )
    assert lazy.stdout == "loaded\n"


# Golden lists


def test_missing_handler_is_reported_until_golden_update(loaded: Loaded, tmp_path: Path) -> None:
    loading = loaded.loading
    for part in golden.PARTS:
        lists = {section: dict(rows) for section, rows in loading.registered[part].items()}
        if part == "plugin":
            lists["_solver.registrations"]["hipsolver_lost_ffi"] = "execute"
            lists["_magma.registrations"] = {"hipmagma_ffi": "execute"}
            lists["_sparse.registrations"]["hipsparse_coo_matvec_ffi"] = "custom call"
        path = golden.golden_file(tmp_path, part, "0.10.2")
        path.parent.mkdir(parents=True)
        path.write_text(golden.dump(lists, part=part, jax_version="0.10.2"))
    found = list(load_gate.compare(loading, tmp_path, update=False))
    assert {finding.code for finding in found} == {"golden-differs"}
    gone, lost, changed = (finding.message for finding in found)
    assert gone.startswith("_magma.so (_magma.registrations; in no wheel) does not register hipmagma_ffi")
    assert f"{PLUGIN}/_solver.so (_solver.registrations) does not register hipsolver_lost_ffi" in lost
    assert "registers otherwise hipsparse_coo_matvec_ffi (execute, not custom call)" in changed
    assert "--update-golden" in found[0].remedy
    assert list(load_gate.compare(loading, tmp_path, update=True)) == []
    for part in golden.PARTS:
        kept = golden.golden_file(golden.ROOT, part, "0.10.2")
        assert golden.golden_file(tmp_path, part, "0.10.2").read_bytes() == kept.read_bytes()


# Processes that do not answer

CHILDREN = {
    "os.kill(os.getpid(), signal.SIGSEGV)": "ended with signal SIGSEGV",
    "sys.exit(3)": "ended with exit code 3",
    "time.sleep(60)": "did not end: .* ran longer than 2 s and was stopped",
}


@pytest.mark.parametrize("what", CHILDREN)
def test_every_abnormal_exit_is_a_finding(what: str, loaded: Loaded, tmp_path: Path) -> None:
    child = tmp_path / "child.py"
    child.write_text(f"import os, signal, sys, time\nsys.stderr.write('its last output')\nsys.stderr.flush()\n{what}\n")
    (finding,) = loaded.probe("dlopen", "x", "dlopen wheel.whl: member.so", child=child, seconds=2).findings
    assert re.match(f"dlopen wheel.whl: member.so {CHILDREN[what]}", finding.message)
    assert ("its last output" in finding.message) == (finding.code == "look-died")
