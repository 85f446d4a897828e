"""Composable Kernel's RMSNorm from generator to handler: units, dispatcher and handler, compiled by a real ROCm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ci_build.build import kernels
from core.model import GfxTarget, KernelRequest
from core.process import HostRunner
from kernels.assemble import toolchain_for
from kernels.build import KernelBuild, KernelBuildResult
from kernels.graph import Capacity
from kernels.tests.support.fake.building import HERE
from tests.integration.conftest import succeed
from tests.support import docker
from tests.support.silent import Silent
from wheelkit.elf.reader import ElfImage
from wheelkit.gpu.code_object import kernarg_sizes

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


X, RESIDUAL, GAMMA, Y, SUM = (0x7F00_0000_0000 + at * 0x1_0000_0000_00 for at in range(5))


def call(rows: int, n: int, dtype: str = "bf16", *, adds: bool = False, **more: Any) -> dict[str, Any]:
    side = [rows, n] if adds else [0]
    return {
        "args": [(dtype, [rows, n], X), (dtype, side, RESIDUAL), (dtype, [n], GAMMA)],
        "results": [(dtype, [rows, n], Y), (dtype, side, SUM)],
        "epsilon": 0.5,
    } | more


CALLS = {
    "eight": call(1000, 64),
    "four": call(1000, 60, "f16"),
    "one": call(1000, 63),
    "empty": call(0, 64),
    "long": call(20_000_000, 64),
    "add": call(4, 64, adds=True),
    "f32": call(4, 64, "f32"),
    "shapes": call(4, 64) | {"args": [("bf16", [4, 64], X), ("bf16", [0], RESIDUAL), ("bf16", [63], GAMMA)]},
    "crooked": call(4, 64) | {"results": [("bf16", [4, 64], Y + 8), ("bf16", [0], SUM)]},
    "epsilon": call(4, 64, epsilon=-1.0),
    "no code": call(4, 64, fail=209),
}


def answers(stand_ins: Path, folder: Path) -> dict[str, dict[str, Any]]:
    """Return the handler's result for each of CALLS on this machine, whose C library is older than the container's."""
    for name in ("libamdhip64.so.7", "drive.so"):
        shutil.copyfile(stand_ins / name, folder / name)
    (folder / "calls.json").write_text(json.dumps(list(CALLS.values())))
    argv = [sys.executable, str(HERE / "drive_ck.py"), str(folder), str(folder / "calls.json")]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    return dict(zip([*CALLS, "library"], json.loads(done.stdout.splitlines()[-1]), strict=True))


def symbols_of_units(inside: InContainer) -> set[str]:
    """Return the kernels of the code objects, all of which are for gfx942 with any setting of xnack and sramecc."""
    job = inside.job(["gfx942"])
    job.fetch(inside.runner, Silent())
    graph = job.graph()
    found = [graph.store.find(graph.keys[step.label]) for step in graph.steps if step.target]
    data = [made.path.read_bytes() for made in found if made is not None]
    assert [int.from_bytes(code[48:52], "little") for code in data] == [0x54C, 0x54C]
    return {name for code in data for name in kernarg_sizes(ElfImage.parse(code, "unit.co"))}


def kernels_build(inside: InContainer, *more: str) -> dict[str, Any]:
    """Return the result of `ci_build kernels build` with the container's compiler."""
    words = ["--targets=gfx942", "--toolchain=container", f"--kernel-image={inside.request.image}"]
    words += [f"--kernel-rocm={inside.request.rocm}", "--modules=rmsnorm_fwd", "--allow-partial", "--json"]
    words += [f"--cache-dir={inside.cache}"]
    told: dict[str, Any] = json.loads(succeed("kernels", "build", *words, *more).stdout)
    return told


@pytest.mark.network
def test_the_handler_reaches_real_kernels(
    engine: docker.Docker, work_cache: Path, stand_ins: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    inside = InContainer(engine, work_cache, monkeypatch)
    built = inside.run("gfx942")
    again = inside.run("gfx942")
    assert (again.forecast.steps, again.forecast.found) == (0, 10)
    assert [n.sha256 for n in again.natives] == [n.sha256 for n in built.natives]
    for native in built.natives:
        shutil.copyfile(native.file, tmp_path / Path(native.path).name)
    symbols = symbols_of_units(inside)
    # A complete build has the same units.
    named = kernels_build(inside, "--units=_(bf16|fp16)_n64_nsm")
    assert (named["steps"], named["found"]) == (0, 4)
    told = answers(stand_ins, tmp_path)

    def one(name: str) -> dict[str, Any]:
        (launch,) = told[name]["launches"]
        assert launch["kernel"] in symbols  # a kernel of the code objects
        return dict(launch)

    # Blocks have 8 rows, or 4, and a wavefront for each.
    assert (one("eight")["grid"], one("eight")["block"]) == ([125, 1, 1], [512, 1, 1])
    assert (one("four")["grid"], one("four")["block"]) == ([250, 1, 1], [256, 1, 1])
    assert (one("one")["grid"], one("one")["block"]) == ([250, 1, 1], [256, 1, 1])
    assert len({one(name)["kernel"] for name in ("eight", "four", "one")}) == 3
    wanted = {"x": X, "gamma": GAMMA, "y": Y, "residual": 0, "sum": 0, "epsilon": 0.5, "m": 1000, "n": 64}
    wanted |= dict.fromkeys(("x_stride", "y_stride"), 64)
    assert {name: one("eight")[name] for name in wanted} == wanted
    assert told["empty"] == {"launches": []}
    # Buffers beyond 32-bit offsets are split.
    first, second = told["long"]["launches"]
    most = (2**31 - 1) // 128
    assert [(part["x"], part["y"], part["m"]) for part in (first, second)] == [
        (X, Y, most),
        (X + most * 128, Y + most * 128, 20_000_000 - most),
    ]

    for name, said in {
        "add": "no kernel on gfx942:sramecc+:xnack- for this call. Called with x bf16[4,64], residual bf16[4,64], ",
        "f32": "x f32[4,64] does not fit: it has to be f16 or bf16.",
        "shapes": "gamma bf16[63] does not fit: it has to be bf16[64].",
        "crooked": "y bf16[4,64] does not begin at a multiple of 16 bytes.",
        "epsilon": "epsilon is -1.000000, not 0 or more.",
        "no code": "no code object for this device",
    }.items():
        assert told[name]["error"].startswith("jax_aiter_ck_rms_norm: ")
        assert said in told[name]["error"]
    assert all(told[name]["launches"] == [] for name in ("add", "f32", "shapes", "crooked", "epsilon"))
    assert told["library"]["info"]["module"] == "rmsnorm_fwd"
    assert told["library"]["traits"] == [0, 1, 1]


@pytest.mark.network
def test_rocm_compiled_wheel_is_manylinux_2_28(
    engine: docker.Docker, work_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """auditwheel confirms the platform: the wheel contains nothing of the container's newer libraries."""
    inside = InContainer(engine, work_cache, monkeypatch)
    made = kernels_build(inside, f"--instances={UNITS}", f"--out={tmp_path}")
    assert Path(made["wheel"]).name.endswith("-py3-none-manylinux_2_28_x86_64.whl")
    assert (made["modules"], made["size"] < 2_000_000) == (["rmsnorm_fwd"], True)
    (looked,) = json.loads(succeed("inspect", made["wheel"], "--targets=gfx942", "--json").stdout)["wheels"]
    said = {found["code"]: found["message"] for found in looked["findings"] if found["severity"] != "note"}
    assert list(said) == ["kernels-partial"]
    # Without HIP the library loads, and a call reports the missing HIP.
    with zipfile.ZipFile(made["wheel"]) as wheel:
        library = wheel.extract("jax_aiter/_kernels/lib/librmsnorm_fwd.so", tmp_path)
    subprocess.run([sys.executable, "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", library], check=True)
