"""Layout of HIP's structures in the handlers, compared with HIP's own headers."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from core.errors import CiBuildError
from core.process import HostRunner
from kernels.steps import SRC, fill
from kernels.tests.support.fake import hip_headers
from kernels.tests.support.fake.building import HERE
from kernels.toolchains import obtain_pypi
from tests.support.silent import Silent

pytestmark = pytest.mark.network

CONSTANT = re.compile(r"^(constexpr .+ k\w+ = )(\d+);$", re.MULTILINE)


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


def test_each_wrong_number_is_detected(
    hip_include: Path, compare: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    text = (SRC / "hip_layout.h").read_text(encoding="utf-8")
    found = list(CONSTANT.finditer(text))
    assert len(found) == 7
    for at, one in enumerate(found):
        wrong = f"{text[: one.start()]}{one[1]}{int(one[2]) + 4};{text[one.end() :]}"
        (tmp_path / f"{at}").mkdir()
        (tmp_path / f"{at}" / "hip_layout.h").write_text(wrong, encoding="utf-8")
        shutil.copyfile(SRC / "hip.h", tmp_path / f"{at}" / "hip.h")
        with pytest.raises(CiBuildError, match="static assertion failed"):
            compare(hip_include, tmp_path / f"{at}")
