"""Device libraries in every layout of TheRock, with the real clang and hipcc of Debian's packages."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ci_build.rocm.facts import device_library_folder, hidden_device_libraries
from tests.support import docker
from tests.support.made_rocm import LAYOUTS
from tests.support.source_place import VERSION

pytestmark = pytest.mark.network

KERNEL = "#include <hip/hip_runtime.h>\n__global__ void f(float *x) { *x = sinf(*x); }\n"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("compiler", ["bin/hipcc", "lib/llvm/bin/clang++"])
def test_compiler_needs_variable_only_if_libraries_are_hidden(
    engine: docker.Docker, tmp_path: Path, layout: str, compiler: str
) -> None:
    rocm = docker.rocm(VERSION, layout)
    hidden = hidden_device_libraries(rocm, device_library_folder(rocm))
    assert hidden == ("lib/llvm/amdgcn/bitcode" if layout == "llvm-only" else "")
    (tmp_path / "f.hip").write_text(KERNEL)

    def compiled(*settings: str) -> subprocess.CompletedProcess[str]:
        words = ["run", "--rm", "--network=none", f"--volume={rocm}:/opt/rocm:ro", f"--volume={tmp_path}:/work:ro"]
        words += [f"--env={name}" for name in ("HIP_CLANG_PATH=/opt/rocm/lib/llvm/bin", "HIP_PLATFORM=amd", *settings)]
        command = f"{engine.builder()} /opt/rocm/{compiler} -x hip -c --offload-arch=gfx942 --rocm-path=/opt/rocm"
        return engine.run(*words, *command.split(), "/work/f.hip", "-o", "/dev/null", check=False)

    alone = compiled()
    if not hidden:
        assert alone.returncode == 0, alone.stderr
        return
    assert (alone.returncode != 0, "cannot find ROCm device library" in alone.stderr) == (True, True), alone.stderr
    told = compiled(f"HIP_DEVICE_LIB_PATH=/opt/rocm/{hidden}")
    assert told.returncode == 0, told.stderr
