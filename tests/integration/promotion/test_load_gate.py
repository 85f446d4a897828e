"""The load gate on published wheels.

Unchanged, broken inside the site, and with an incomplete ROCm.

The wheels are loaded with stubs of ROCm, in separate processes as in the gate.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from core.model import RocmVersion
from core.process import HostRunner
from core.rocm_layouts import allowed_sonames
from promotion.gates.common.gate_context import Check, GateContext
from promotion.gates.common.gate_site import (
    RocmLibraries,
    Site,
    make_site,
    rocm_libraries,
)
from promotion.gates.common.pythons import find_pythons
from promotion.gates.common.stubs import write_stubs
from promotion.gates.load import golden, load_gate
from promotion.gates.load.child_probe import Probe, run_probe
from promotion.gates.load.load_checks import LoadChecks
from tests.support.gating import gate_context, stage_published
from wheelkit.elf.snapshot import Elf
from wheelkit.rocm_manifest import from_needs

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


@pytest.fixture(scope="session")
def published(
    real_wheel: Callable[..., Path],
    pinned_python: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Loaded]:
    """Return `published(version)`, which adopts, stages and loads a version once."""
    known: dict[str, Loaded] = {}

    def find(version: str) -> Loaded:
        if version not in known:
            python = pinned_python if version == "0.10.2" else NEWEST
            folder = tmp_path_factory.mktemp(f"load-{version}")
            wheels = [
                real_wheel("jax-rocm7-pjrt", version),
                real_wheel("jax-rocm7-plugin", version, python),
            ]
            known[version] = _load(folder, wheels, python)
        return known[version]

    return find


@pytest.fixture
def loaded(published: Callable[[str], Loaded]) -> Loaded:
    """Return the published 0.10.2."""
    return published("0.10.2")


def _load(folder: Path, wheels: list[Path], python: str) -> Loaded:
    context = gate_context(
        folder, *stage_published(folder, wheels), HostRunner(os.environ)
    )
    site = make_site(context, python)
    libraries = rocm_libraries(context, site, None)
    loading = LoadChecks(context, site, libraries)
    return Loaded(context, site, libraries, tuple(loading.run()), loading)


@pytest.mark.parametrize(
    "version",
    (
        ["0.10.2", "0.12.0"]
        if find_pythons([NEWEST], HostRunner(os.environ))
        else ["0.10.2"]
    ),
)
def test_published_wheels_match_golden_lists(
    published: Callable[[str], Loaded], version: str
) -> None:
    loaded = published(version)
    assert [check.findings for check in loaded.checks if check.findings] == []
    assert all(check.outcome == "passed" for check in loaded.checks)
    names = [check.name for check in loaded.checks]
    assert sum(": dlopen " in name for name in names) == 9
    assert sum(": import " in name and name.endswith(".so") for name in names) == 8
    assert list(load_gate.compare(loaded.loading, golden.ROOT, update=False)) == []


def test_site_is_isolated_from_this_interpreter(loaded: Loaded) -> None:
    site = loaded.site
    code = (
        "import importlib.metadata as m; print(*sorted(d.name for d in"
        " m.distributions()))"
    )
    argv = [str(site.python), "-I", "-c", code]
    told = subprocess.run(
        argv, capture_output=True, text=True, check=True
    ).stdout.split()
    assert {"jax", "jaxlib", "jax-rocm7-pjrt", "jax-rocm7-plugin"} <= set(told)
    assert "pytest" not in told
    assert site.env["LD_LIBRARY_PATH"] == ""  # unset, if the user has set it


def test_missing_symbol_fails_with_immediate_binding_only(
    loaded: Loaded, tmp_path: Path
) -> None:
    rocm = RocmVersion(text=loaded.context.wheel_set.rocm_version)
    elfs = [
        Elf.read(loaded.site.folder / library.path)
        for library in loaded.loading.libraries
    ]
    manifest = from_needs(elfs, str(rocm), allowed_sonames(rocm))
    solver = manifest.libraries["libhipsolver.so.1"]
    symbols = {
        name: versions
        for name, versions in solver.symbols.items()
        if name != "hipsolverSgetrf"
    }
    write_stubs(
        replace(
            manifest,
            libraries={
                **manifest.libraries,
                solver.soname: replace(solver, symbols=symbols),
            },
        ),
        tmp_path,
    )
    member = f"{PLUGIN}/_solver.so"
    env = {
        **loaded.loading.env,
        "LD_LIBRARY_PATH": f"{tmp_path}/lib",
        "ROCM_PATH": str(tmp_path),
    }
    probe = Probe(
        function="dlopen",
        arguments=(str(loaded.site.folder / member),),
        name=member,
        member=member,
    )
    said = run_probe(loaded.context.runner, loaded.site, env, probe).values["error"]
    assert said.endswith("undefined symbol: hipsolverSgetrf")
    code = (
        f"import os, sys; sys.setdlopenflags(os.RTLD_LAZY); import {PLUGIN}._solver;"
        " print('loaded')"
    )
    env = {key: value for key, value in os.environ.items() if key != "LD_BIND_NOW"}
    argv = [str(loaded.site.python), "-I", "-c", code]
    lazy = subprocess.run(
        argv,
        env={**env, "LD_LIBRARY_PATH": f"{tmp_path}/lib"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert lazy.stdout == "loaded\n"
