"""Kernel builds that cannot be done, and their locations."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from core.errors import KernelError, RequestError
from core.model import BuildRequest, KernelRequest, Payload, RocmVersion
from core.report import NoProgress
from core.targets import expand
from kernels import kernel_recipe as recipe
from kernels import toolchains
from kernels.assemble import prepare
from kernels.build import KernelBuild
from kernels.build_context import context_in
from kernels.graph import Capacity
from kernels.tests.unit.test_kernel_graph import TOOLCHAIN, IdleRunner
from tests.support.silent import NoProcesses

# Incomplete builds


@pytest.mark.parametrize("allow_partial", [False, True])
def test_build_without_complete_module_is_an_error(
    allow_partial: bool, tmp_path: Path
) -> None:
    job = KernelBuild(
        KernelRequest(allow_partial=allow_partial),
        expand("gfx1100"),
        TOOLCHAIN,
        context_in(tmp_path, IdleRunner(1), NoProgress()),
    )
    with pytest.raises(KernelError, match="exit code 1"):
        job.run(Capacity())


# Choice of JAX


def test_old_jaxlib_without_ffi_api_is_refused() -> None:
    for version in ("0.8.0", "0.9.1", "0.10.2", "0.12.0"):
        recipe.check_jax(version)
    for version in ("0.7.1", "0.8.0rc1"):
        with pytest.raises(RequestError, match=r"Use --jax-version=0\.8\.0 or later"):
            recipe.check_jax(version)


# Locations


def test_relative_paths_become_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content = toolchains._LAYOUT.encode() + toolchains.LOCK.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    pypi = f"my cache/kernels/toolchains/pypi-{digest[:16]}"
    for name in (
        f"{pypi}/ziglang/zig",
        "my rocm/llvm/bin/clang++",
        "my rocm/amdgcn/bitcode/ocml.bc",
    ):
        Path(name).parent.mkdir(parents=True)
        Path(name).touch()
    targets = expand("gfx942")
    request = BuildRequest(
        jax_version="0.10.2",
        rocm_version=RocmVersion(text="7.2.0"),
        python_versions=("3.12",),
        targets=targets,
        payload=Payload.PUBLISHED,
        kernels=KernelRequest(toolchain="rocm", rocm="my rocm"),
    )
    made = prepare(
        request,
        targets,
        context_in(Path("my cache"), NoProcesses(), NoProgress()),
    )
    chain = made.toolchain
    places = map(Path, chain.places.values())
    for path in (*places, made.store.root, made.work()):
        assert path.is_relative_to(tmp_path)
