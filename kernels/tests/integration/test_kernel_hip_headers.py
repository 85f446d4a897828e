"""Layout of HIP's structures in the handlers, compared with HIP's own headers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from core.process import HostRunner
from kernels.steps import SRC, fill
from kernels.tests.support.fake import hip_headers
from kernels.tests.support.fake.building import HERE
from kernels.toolchains import obtain_pypi
from tests.support.silent import Silent

pytestmark = pytest.mark.network


@pytest.fixture
def compare(work_cache: Path, tmp_path: Path) -> Callable[[Path, Path], None]:
    """Return a function that compares a hip_layout.h in a folder with HIP's headers; it raises CiBuildError."""
    runner = HostRunner(os.environ)
    toolchain = obtain_pypi(work_cache / "kernels", runner, Silent())

    def run(include: Path, layout: Path) -> None:
        places = {**toolchain.places, "src": str(SRC)}
        argv = [fill(word, places) for word in toolchain.host_command()]
        # The folder of the checked header precedes that of the sources.
        argv[2:2] = ["-I", str(layout)]
        argv += [*hip_headers.DEFINES, str(include), "-c", str(HERE / "hip_layout.cc"), "-o", str(tmp_path / "out.o")]
        runner.run(argv, env=toolchain.environment)

    return run


@pytest.mark.parametrize("version", hip_headers.TRITON)
def test_layout_equals_headers_of_hip(
    real_wheel: Callable[..., Path], compare: Callable[[Path, Path], None], tmp_path: Path, version: str
) -> None:
    include = hip_headers.unpack(real_wheel("triton", hip_headers.TRITON[version]), tmp_path)
    major, minor = version.split(".")
    text = (include / "hip" / "hip_version.h").read_text(encoding="utf-8")
    assert f"HIP_VERSION_MAJOR {major}\n#define HIP_VERSION_MINOR {minor}\n" in text
    compare(include, SRC)
