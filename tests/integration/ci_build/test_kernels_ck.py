"""Composable Kernel's RMSNorm compiled by a ROCm in a container."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.integration.conftest import succeed
from tests.support import docker


@pytest.mark.network
def test_rocm_compiled_wheel_is_manylinux_2_28(
    engine: docker.Docker,
    work_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """auditwheel confirms the platform.

    The wheel contains nothing of the container's newer libraries.
    """
    for name in ("DOCKER_HOST", "PATH"):
        monkeypatch.setenv(name, engine.environment[name])
    words = [
        "--targets=gfx942",
        f"--kernel-image={engine.builder()}",
    ]
    words += [
        f"--kernel-rocm={docker.rocm('7.2.0')}",
        "--kernel-modules=rmsnorm_fwd",
        "--aiter-source=sdist",
        "--allow-partial",
        "--json",
    ]
    words += [
        "--kernel-instances=_bf16_n64_nsm$",
        f"--cache-dir={work_cache}",
        f"--out={tmp_path}",
    ]
    made = json.loads(succeed("kernels", "build", *words).stdout)
    assert Path(made["wheel"]).name.endswith("-py3-none-manylinux_2_28_x86_64.whl")
    assert made["modules"] == ["rmsnorm_fwd"]
    assert (made["size"] < 2_000_000) is True
    (looked,) = json.loads(
        succeed("inspect", made["wheel"], "--targets=gfx942", "--json").stdout
    )["wheels"]
    said = {
        found["code"]: found["message"]
        for found in looked["findings"]
        if found["severity"] != "note"
    }
    assert list(said) == ["kernels-partial"]
    # Without HIP the library loads, and a call reports the missing HIP.
    with zipfile.ZipFile(made["wheel"]) as wheel:
        library = wheel.extract("jax_aiter/_kernels/lib/librmsnorm_fwd.so", tmp_path)
    subprocess.run(
        [sys.executable, "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", library],
        check=True,
    )
