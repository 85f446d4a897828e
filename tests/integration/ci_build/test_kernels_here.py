"""Kernels from a ROCm compiler on this machine, without a container."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from core.process import HostRunner
from kernels.build_context import context_in
from kernels.tests.support.fake.building import HERE
from kernels.toolchains import obtain_pypi
from promotion.gates.coverage.kernel_rules import load_rules
from tests.integration.conftest import succeed
from tests.support import docker, forky
from tests.support.silent import Silent
from wheelkit.elf.snapshot import Elf
from wheelkit.gpu.fatbin import read_targets
from wheelkit.gpu.registration import registered_kernels

pytestmark = pytest.mark.network
SHARED = ("toolchains", "zig", "sources", "rocm-digests")
"""What a cache holds beside what was compiled.

Machines that share nothing would each fetch or make it.
"""


class Here:
    """`ci_build kernels` with one ROCm and cache folders of simulated machines."""

    def __init__(self, work_cache: Path, folder: Path) -> None:
        self.folder = folder
        self.kernels = work_cache / "kernels"
        obtain_pypi(context_in(self.kernels.parent, HostRunner(os.environ), Silent()))
        shutil.copytree(
            docker.rocm_here(),
            folder / "rocm",
            copy_function=os.link,
            symlinks=True,
        )
        self.environment = {"CI_BUILD_AITER_SOURCE": "sdist"}

    def cache(self, name: str) -> Path:
        folder = self.folder / name
        (folder / "kernels").mkdir(parents=True, exist_ok=True)
        for shared in SHARED:
            (self.kernels / shared).mkdir(exist_ok=True)
            if not (folder / "kernels" / shared).exists():
                (folder / "kernels" / shared).symlink_to(self.kernels / shared)
        return folder

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return succeed("kernels", *words, env=self.environment)

    def build(
        self, cache: Path, *words: str, instances: str = "_bf16_n64_nsm$"
    ) -> dict[str, Any]:
        words = (
            f"--kernel-instances={instances}",
            f"--kernel-rocm={self.folder / 'rocm'}",
            f"--cache-dir={cache}",
            *words,
        )
        done = self.run(
            "build",
            "--targets=gfx942",
            "--allow-partial",
            "--json",
            *words,
        )
        told: dict[str, Any] = json.loads(done.stdout)
        return told


@pytest.fixture
def here(work_cache: Path, tmp_path: Path) -> Here:
    if why := forky.obstacle():
        pytest.skip(f"a ROCm of Debian's packages {why}")
    return Here(work_cache, tmp_path)


X, RESIDUAL, GAMMA, Y, SUM = (
    0x7F00_0000_0000 + at * 0x1_0000_0000_00 for at in range(5)
)


def call(
    rows: int, n: int, dtype: str = "bf16", *, adds: bool = False, **more: Any
) -> dict[str, Any]:
    side = [rows, n] if adds else [0]
    return {
        "args": [
            (dtype, [rows, n], X),
            (dtype, side, RESIDUAL),
            (dtype, [n], GAMMA),
        ],
        "results": [
            (dtype, [rows, n], Y),
            (dtype, side, SUM),
        ],
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
    "shapes": (
        call(4, 64)
        | {
            "args": [
                ("bf16", [4, 64], X),
                ("bf16", [0], RESIDUAL),
                ("bf16", [63], GAMMA),
            ]
        }
    ),
    "crooked": (
        call(4, 64)
        | {
            "results": [
                ("bf16", [4, 64], Y + 8),
                ("bf16", [0], SUM),
            ]
        }
    ),
    "epsilon": call(4, 64, epsilon=-1.0),
    "no code": call(4, 64, fail=209),
}


def answers(stand_ins: Path, folder: Path) -> dict[str, dict[str, Any]]:
    """Return the handler's result for each of CALLS on this machine."""
    for name in ("libamdhip64.so.7", "drive.so"):
        shutil.copyfile(stand_ins / name, folder / name)
    (folder / "calls.json").write_text(json.dumps(list(CALLS.values())))
    argv = [
        sys.executable,
        str(HERE / "drive_ck.py"),
        str(folder),
        str(folder / "calls.json"),
    ]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    done = subprocess.run(
        argv, env=environment, capture_output=True, text=True, check=True
    )
    return dict(
        zip(
            [*CALLS, "library"],
            json.loads(done.stdout.splitlines()[-1]),
            strict=True,
        )
    )


def test_handler_reaches_real_kernels(
    here: Here, stand_ins: Path, tmp_path: Path
) -> None:
    made = here.build(
        here.cache("ck"),
        "--kernel-modules=rmsnorm_fwd",
        f"--out={tmp_path / 'out'}",
        instances=r"_(bf16|fp16)_n64_nsm$",
    )
    assert made["wheel"].endswith("-py3-none-manylinux_2_28_x86_64.whl")
    with zipfile.ZipFile(made["wheel"]) as wheel:
        library = tmp_path / "librmsnorm_fwd.so"
        library.write_bytes(wheel.read("jax_aiter/_kernels/lib/librmsnorm_fwd.so"))
    bundles = registered_kernels(library)
    symbols = set(chain.from_iterable(bundle.kernels for bundle in bundles))
    told = answers(stand_ins, tmp_path)

    def one(name: str) -> dict[str, Any]:
        (launch,) = told[name]["launches"]
        assert launch["kernel"] in symbols
        return dict(launch)

    # Blocks have 8 rows, or 4, and a wavefront for each.
    assert one("eight")["grid"] == [125, 1, 1]
    assert one("eight")["block"] == [512, 1, 1]
    assert one("four")["grid"] == [250, 1, 1]
    assert one("four")["block"] == [256, 1, 1]
    assert one("one")["grid"] == [250, 1, 1]
    assert one("one")["block"] == [256, 1, 1]
    assert len({one(name)["kernel"] for name in ("eight", "four", "one")}) == 3
    wanted = {
        "x": X,
        "gamma": GAMMA,
        "y": Y,
        "residual": 0,
        "sum": 0,
        "epsilon": 0.5,
        "m": 1000,
        "n": 64,
    }
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
        "add": (
            "no kernel on gfx942:sramecc+:xnack- for this call. Called with x"
            " bf16[4,64], residual bf16[4,64], "
        ),
        "f32": "x f32[4,64] does not fit: it has to be f16 or bf16.",
        "shapes": "gamma bf16[63] does not fit: it has to be bf16[64].",
        "crooked": "y bf16[4,64] does not begin at a multiple of 16 bytes.",
        "epsilon": "epsilon is -1.000000, not 0 or more.",
        "no code": "no code object for this device",
    }.items():
        assert told[name]["error"].startswith("jax_aiter_ck_rms_norm: ")
        assert said in told[name]["error"]
    assert all(
        told[name]["launches"] == []
        for name in ("add", "f32", "shapes", "crooked", "epsilon")
    )
    assert told["library"]["info"]["module"] == "rmsnorm_fwd"
    assert told["library"]["traits"] == [0, 1, 1]


def test_attention_of_few_kernels(here: Here, tmp_path: Path) -> None:
    """One of 1,032 kernels, a dispatcher restricted to it, and the handler, in one library."""
    one = "_d32_bf16_batch_.*_psddv_nlogits_nbias_nmask_lse_ndropout"
    cache = here.cache("attention")
    with pytest.raises(
        AssertionError, match="No instance of ck_mha_bwd has a name that matches"
    ):
        here.build(
            cache,
            "--kernel-modules=mha_bwd",
            instances="_d32_bf16_batch_.*_lse",
        )
    made = here.build(
        cache, "--kernel-modules=mha_fwd", f"--out={tmp_path / 'out'}", instances=one
    )
    # AITER generates one unit for gfx9 and one for gfx950, whose host side the
    # dispatcher also needs.
    assert made["modules"] == ["mha_fwd"]
    assert made["steps"] == {"made": 9, "found": 0}
    with zipfile.ZipFile(made["wheel"]) as wheel:
        library = Path(wheel.extract("jax_aiter/_kernels/lib/libmha_fwd.so", tmp_path))
        assert (
            json.loads(wheel.read("jax_aiter/_kernels/manifest.json"))["modules"][
                "mha_fwd"
            ]["instances"]
            == one
        )
    held = read_targets(library, verify=True)
    assert held.findings == ()
    assert [(code.target, code.bundles) for code in held.device.targets] == [
        ("gfx942", 1)
    ]
    assert "JaxAiterMhaFwd" in Elf.read(library).exported
    # The unit for gfx950 is registered as well, with an empty bundle, which the
    # coverage gate excuses by its name.
    bundles = registered_kernels(library)
    kernels = list(chain.from_iterable(bundle.kernels for bundle in bundles))
    rules = [
        rule for rule in load_rules().only if rule.member.endswith("/libmha_fwd.so")
    ]
    excused = []
    for name in kernels:
        excused.append(any(rule.excuses(name, "gfx942") for rule in rules))
    assert all("FmhaFwdKernel" in name for name in kernels)
    assert sorted(excused) == [False, True]
