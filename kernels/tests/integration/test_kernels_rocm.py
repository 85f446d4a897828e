"""Device libraries: generators that fail or change, and Composable Kernel's real units with a real compiler."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci_build.build import kernels
from core.errors import InputError, KernelError
from core.model import GfxTarget, KernelRequest
from core.process import HostRunner
from core.targets import machs
from kernels.assemble import toolchain_for
from kernels.build import KernelBuild, KernelBuildResult
from kernels.catalog import load_catalog
from kernels.checks import SYSTEM
from kernels.generate import generate
from kernels.graph import Capacity
from kernels.modules import Generator, KernelModule
from kernels.rocmchain import with_rocm
from kernels.sources import SourceTree
from kernels.toolchains import obtain_pypi
from tests.support import docker
from tests.support.silent import Silent
from wheelkit.elf.snapshot import Elf
from wheelkit.gpu.fatbin import read_targets
from wheelkit.gpu.registration import registered_kernels

SCRIPT = """
import pathlib, sys
out = pathlib.Path(sys.argv[1])
for name in ("a_x.cpp", "b_x.cpp", "c_y.cpp", "common.hpp"):
    (out / name).write_text(name)
sys.exit(int(sys.argv[2]))
"""


def module(**changes: Any) -> KernelModule:
    generator = Generator(
        script="gen/gen.py", arguments=("{out}", "0"), suffix=".cpp", count=3, kept=2, keep=(r".*_x\.cpp",)
    )
    return replace(
        load_catalog().modules["ck_rms_norm"], headers=("include",), generators=(replace(generator, **changes),)
    )


@pytest.fixture
def tree(tmp_path: Path) -> SourceTree:
    folder = tmp_path / "source"
    (folder / "gen").mkdir(parents=True)
    (folder / "gen" / "gen.py").write_text(SCRIPT)
    files = {"gen/gen.py": hashlib.sha256(SCRIPT.encode()).hexdigest()}
    return SourceTree(folder=folder, files=files, origin=None, name="s")


def generated(tree: SourceTree, cache: Path, **changes: Any) -> tuple[list[str], list[str]]:
    made = generate(module(**changes), tree, cache, HostRunner(os.environ), Silent())
    return sorted(made.units), sorted(made.headers)


def test_unreachable_instances_are_not_compiled(tree: SourceTree, tmp_path: Path) -> None:
    assert generated(tree, tmp_path / "cache") == (["a_x.cpp", "b_x.cpp"], ["common.hpp"])
    (tree.folder / "gen" / "gen.py").unlink()  # the second run must not call the generator
    assert generated(tree, tmp_path / "cache") == (["a_x.cpp", "b_x.cpp"], ["common.hpp"])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"arguments": ("{out}", "3")}, r"The generator gen/gen\.py of ck_rms_norm failed: .*exit code 3"),
        ({"count": 4}, r"wrote 3 files, not 4"),
        ({"kept": 1}, r"keeps 2 files of gen/gen\.py, not 1"),
        ({"keep": ("none",), "kept": 1}, r"keeps 0 files of gen/gen\.py, not 1"),
        ({"script": "gen/none.py"}, r"The generator gen/none\.py of ck_rms_norm failed"),
    ],
)
def test_generator_failure_or_other_output_is_an_error(
    changes: dict[str, Any], said: str, tree: SourceTree, tmp_path: Path
) -> None:
    with pytest.raises(KernelError, match=said):
        generated(tree, tmp_path / "cache", **changes)
    assert [path for path in (tmp_path / "cache" / "generated").iterdir() if path.is_dir()] == []


def test_instance_pattern_without_match_is_an_error(tree: SourceTree, tmp_path: Path) -> None:
    few = generate(module(count=9, kept=9), tree, tmp_path, HostRunner(os.environ), Silent(), "_x")
    assert sorted(few.units) == ["a_x.cpp", "b_x.cpp"]
    for changes in ({"keep": ("none",)}, {"keep": (r"rmsnorm2d_fwd_api\.cpp",)}):
        with pytest.raises(KernelError, match="No instance of ck_rms_norm has a name that matches '_z'"):
            generate(module(**changes), tree, tmp_path, HostRunner(os.environ), Silent(), "_z")
    with pytest.raises(KernelError, match=r"keeps 2 files of gen/gen\.py, more than 1"):
        generate(module(kept=1), tree, tmp_path, HostRunner(os.environ), Silent(), "_x")


@pytest.mark.parametrize("line", ["import socket; socket.socket()", "import os; os.system('true')"])
def test_generator_cannot_use_network_or_processes(line: str, tree: SourceTree, tmp_path: Path) -> None:
    (tree.folder / "gen" / "gen.py").write_text(f"{line}\n{SCRIPT}")
    with pytest.raises(
        KernelError,
        match=r"(?s)gen/gen\.py of ck_rms_norm failed: .*generators must not use the network or start processes",
    ):
        generated(tree, tmp_path / "cache")


@pytest.mark.network
def test_rocm_without_compiler_is_refused(work_cache: Path, tmp_path: Path) -> None:
    pypi = obtain_pypi(work_cache / "kernels", HostRunner(os.environ), Silent())
    with pytest.raises(InputError, match="has no compiler"):
        with_rocm(pypi, tmp_path, "rocm", tmp_path / "cache")
    (tmp_path / "llvm/bin").mkdir(parents=True)
    (tmp_path / "llvm/bin/clang++").write_text("")
    with pytest.raises(InputError, match="has no device bitcode"):
        with_rocm(pypi, tmp_path, "rocm", tmp_path / "cache")
    (tmp_path / "amdgcn/bitcode").mkdir(parents=True)
    (tmp_path / "amdgcn/bitcode/ocml.bc").write_text("")
    (tmp_path / "llvm/lib/clang/19/include").mkdir(parents=True)
    with pytest.raises(InputError, match=r"is clang 19; the kernels need 20 or later"):
        with_rocm(pypi, tmp_path, "rocm", tmp_path / "cache")
    (tmp_path / "llvm/lib/clang/22/include").mkdir(parents=True)
    assert with_rocm(pypi, tmp_path, "rocm", tmp_path / "cache").places["rocm"] == str(tmp_path)


# Composable Kernel

UNITS = r"_(bf16|fp16)_n64_nsm$"


class InContainer:
    """Build of two real units of RMSNorm, their dispatcher and the handler with the compiler of Debian's ROCm."""

    def __init__(self, engine: docker.Docker, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("DOCKER_HOST", "PATH"):
            monkeypatch.setenv(name, engine.environment[name])
        self.cache, self.runner = cache, HostRunner(os.environ)
        self.request = KernelRequest(
            toolchain="container",
            image=engine.builder(),
            rocm=str(docker.rocm("7.2.0")),
            modules=("rmsnorm_fwd",),
            allow_partial=True,
            instances=UNITS,
        )

    def job(self, targets: Sequence[str]) -> KernelBuild:
        place = kernels.find_compilers(self.request, self.cache, self.runner)
        toolchain = toolchain_for(self.request, self.cache / "kernels", self.runner, Silent(), place)
        wanted = [GfxTarget.parse(target) for target in targets]
        return KernelBuild(self.request, wanted, toolchain, cache=self.cache / "kernels")

    def run(self, *targets: str) -> KernelBuildResult:
        return self.job(targets).run(self.runner, Silent(), Capacity())


@pytest.mark.network
def test_real_units_of_composable_kernel(
    engine: docker.Docker, work_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = InContainer(engine, work_cache, monkeypatch)
    first = inside.job(["gfx942"]).run_shard((1, 1), inside.runner, Silent(), Capacity())
    # Device pass of two units; host pass of these, the dispatcher and four of our files; a shard links nothing.
    # Another test may have compiled them.
    assert first.steps + first.found == 9
    built = inside.run("gfx942")
    assert (built.forecast.steps + built.forecast.found, built.forecast.steps <= 1) == (10, True)
    (library,) = built.natives
    report = read_targets(library.file, verify=True, machs=machs())
    assert report.findings == ()
    assert [(code.target, code.bundles) for code in report.device.targets] == [("gfx942", 2)]
    kernels = {name for bundle in registered_kernels(library.file) for name in bundle.kernels}
    # Another test may have had the same units generated.
    units = {
        unit.name: unit for unit in (inside.cache / "kernels" / "generated").glob("*/rmsnorm2d_fwd_*16_n64_nsm.cpp")
    }
    assert len(kernels) == sum(unit.read_text().count("template float rmsnorm2d_fwd_<") for unit in units.values()) > 0
    # The library needs neither the container's C++ library nor HIP, which is looked up at first use.
    elf = Elf.read(library.file)
    assert set(elf.needed) <= set(SYSTEM)
    assert not [name for name in elf.exported if "rmsnorm2d_fwd" in name or name.startswith("_ZNSt")]

    more = inside.run("gfx942", "gfx1100")
    assert (more.forecast.steps, more.forecast.found) == (3, 9)  # two device objects and the link
    (library,) = more.natives
    held = read_targets(library.file, verify=True, machs=machs()).device.targets
    assert [(code.target, code.bundles) for code in held] == [("gfx1100", 2), ("gfx942", 2)]
