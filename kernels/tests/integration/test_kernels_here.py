"""A ROCm compiler on this machine, without a container: merged shards, and a real ccache."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.utils import parse_wheel_filename

from ci_build.build import adopt
from core.model import RocmVersion, Severity
from core.process import HostRunner
from core.targets import machs
from kernels.toolchains import obtain_pypi
from promotion.gates.common.runs import run_gates
from promotion.gates.coverage import gate as coverage_gate
from promotion.stage import stage
from promotion.storage.directory_bucket import DirBucket
from tests.integration.conftest import succeed
from tests.support import docker, forky
from tests.support.silent import Silent
from tests.support.wheel_sets import pjrt, plugin
from wheelkit.elf.snapshot import Elf
from wheelkit.gpu.fatbin import read_targets
from wheelkit.gpu.registration import registered_kernels

pytestmark = pytest.mark.network
ROOT = Path(__file__).resolve().parents[3]
SHARED = ("toolchains", "zig", "sources", "rocm-digests")
"""What a cache holds beside what was compiled; machines that share nothing would each fetch or make it."""


class Here:
    """`ci_build kernels` with one ROCm and cache folders of simulated machines."""

    def __init__(self, work_cache: Path, folder: Path) -> None:
        self.folder, self.kernels = folder, work_cache / "kernels"
        obtain_pypi(self.kernels, HostRunner(os.environ), Silent())
        shutil.copytree(docker.rocm_here("7.2.0"), folder / "rocm", copy_function=os.link, symlinks=True)
        self.environment = {**os.environ, "CCACHE_DIR": str(folder / "ccache")}

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

    def build(self, cache: Path, *words: str, instances: str = "_bf16_n64_nsm$") -> dict[str, Any]:
        words = (f"--instances={instances}", f"--kernel-rocm={self.folder / 'rocm'}", f"--cache-dir={cache}", *words)
        done = self.run("build", "--targets=gfx942", "--toolchain=rocm", "--allow-partial", "--json", *words)
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    def ccache(self) -> tuple[int, int]:
        """Return the hits and misses since the last call."""
        said = subprocess.run(
            ["ccache", "-sz"], env=self.environment, capture_output=True, text=True, check=True
        ).stdout
        found = dict(re.findall(r"(Hits|Misses):\s+(\d+) /", said.partition("Local storage")[0]))
        return int(found["Hits"]), int(found["Misses"])


@pytest.fixture
def here(work_cache: Path, tmp_path: Path) -> Here:
    if why := forky.obstacle():
        pytest.skip(f"a ROCm of Debian's packages {why}")
    if shutil.which("ccache") is None:
        pytest.skip("needs ccache")
    return Here(work_cache, tmp_path)


def test_shards_merge_and_compiler_cache_keys_rocm(here: Here, tmp_path: Path) -> None:
    module, first, second, joined = "--modules=rmsnorm_fwd", *(here.cache(name) for name in ("first", "second", "all"))
    # Device pass of one unit; host pass of the unit, the dispatcher and four of our files.
    parts = [here.build(cache, module, f"--shard={n}/2")["steps"] for n, cache in enumerate((first, second), 1)]
    assert (sum(parts), min(parts) > 0) == (7, True)
    assert here.ccache() == (0, 7)
    said = here.run("merge", str(first), str(second), f"--cache-dir={joined}").stderr
    assert re.findall(r"(\d+) merged, (\d+) damaged", said) == [(str(part), "0") for part in parts]
    whole = here.build(joined, module, f"--out={tmp_path / 'joined'}")
    assert whole["steps"] == {"made": 1, "found": 7}  # the link
    assert whole["modules"] == ["rmsnorm_fwd"]

    # Each machine's compiler cache has its own shard; the bytes do not depend on the number of machines.
    shutil.rmtree(first / "kernels" / "store")
    again = here.build(first, module, f"--out={tmp_path / 'again'}")
    assert (again["steps"], again["sha256"]) == ({"made": 8, "found": 0}, whole["sha256"])
    assert here.ccache() == tuple(parts)

    # Another ROCm, although no file that a compiler cache checks has changed.
    (tmp_path / "rocm/lib/llvm/amdgcn/bitcode/more.bc").write_bytes(b"")
    assert here.build(first, module, "--units=rmsnorm_fwd/module")["steps"] == 1
    assert here.ccache() == (0, 1)


def test_attention_of_few_kernels(here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 1,032 kernels, a dispatcher restricted to it, and the handler, in one library."""
    one = "_d32_bf16_batch_.*_psddv_nlogits_nbias_nmask_lse_ndropout"
    cache = here.cache("attention")
    with pytest.raises(AssertionError, match="No instance of ck_mha_bwd has a name that matches"):
        here.build(cache, "--modules=mha_bwd", "--forecast", instances="_d32_bf16_batch_.*_lse")
    made = here.build(cache, "--modules=mha_fwd", f"--out={tmp_path / 'out'}", instances=one)
    # AITER generates one unit for gfx9 and one for gfx950, whose host side the dispatcher also needs.
    assert (made["modules"], made["steps"]) == (["mha_fwd"], {"made": 9, "found": 0})
    with zipfile.ZipFile(made["wheel"]) as wheel:
        library = Path(wheel.extract("jax_aiter/_kernels/lib/libmha_fwd.so", tmp_path))
        assert json.loads(wheel.read("jax_aiter/_kernels/manifest.json"))["modules"]["mha_fwd"]["instances"] == one
    held = read_targets(library, verify=True, machs=machs())
    assert held.findings == ()
    assert [(code.target, code.bundles) for code in held.device.targets] == [("gfx942", 1)]
    # The unit for gfx950 is registered as well, with an empty bundle.
    assert [["FmhaFwdKernel" in name for name in bundle.kernels] for bundle in registered_kernels(library)] == [
        [True],
        [True],
    ]
    assert "JaxAiterMhaFwd" in Elf.read(library).exported
    judged(Path(made["wheel"]), tmp_path, monkeypatch)


def judged(wheel: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coverage gate does not require gfx942 code that is generated for gfx950 alone; without its rules it would."""
    (folder / "others").mkdir()
    version = str(parse_wheel_filename(wheel.name)[1])
    others = [made.write(folder / "others") for made in (pjrt(version), plugin(version))]
    words = [str(wheel), *map(str, others)]
    adopt.adopt(words, out=folder / "set", rocm=RocmVersion(text="7.2.0"), progress=Silent())
    bucket = DirBucket(folder / "bucket")
    staged = stage(bucket, folder / "set")

    def errors() -> list[str]:
        (evidence,) = run_gates(
            bucket, staged, [coverage_gate.GATE], HostRunner(os.environ), Silent(), targets=("gfx942",), redo=True
        )
        return [found.message for found in evidence.findings if found.severity is Severity.ERROR]

    assert errors() == []
    monkeypatch.setattr(coverage_gate, "load_rules", lambda: ())
    (text,) = errors()
    assert "libmha_fwd.so has no code for gfx942 of 1 registered kernel: " in text
