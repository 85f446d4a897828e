"""Wheels of ROCm in a folder: their version, and refusals of wheels that are not one ROCm."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ci_build.cli.options.rocm import find_rocm, rocm_defaults
from ci_build.cli.options.settings import Settings
from ci_build.rocm.package_folder import packages_in, wheels_version
from ci_build.rocm.request import RocmSource, check_source, planned_steps
from core.errors import RequestError
from core.process import HostRunner
from core.report import Reporter

CORE, DEVEL = "rocm_sdk_core-10.0.0-py3-none-linux_x86_64.whl", "rocm_sdk_devel-10.0.0-py3-none-linux_x86_64.whl"
LIBRARIES = "rocm_sdk_libraries_gfx94X_dcgpu-10.0.0-py3-none-linux_x86_64.whl"
WHOLE = (CORE, DEVEL, LIBRARIES)


def folder_of(root: Path, names: Sequence[str]) -> str:
    """Return a folder with empty files of these names."""
    for name in names:
        (root / name).touch()
    return str(root)


def test_packages_in_folder_are_only_wheels_of_rocm(tmp_path: Path) -> None:
    source = folder_of(tmp_path, (*WHOLE, "rocm-10.0.0.tar.gz", "numpy-2.0.0-cp312-cp312-linux_x86_64.whl"))
    found = packages_in(source)
    assert [path.name for path in found] == sorted(WHOLE)
    assert wheels_version(found) == "10.0.0"
    assert packages_in("https://host/rocm.tar.gz") == ()
    assert wheels_version([tmp_path / "rocm-core.deb"]) == ""


def test_wheels_give_default_of_rocm_version(tmp_path: Path) -> None:
    rocm = RocmSource(source=folder_of(tmp_path, WHOLE))
    check_source(rocm)
    assert rocm_defaults(Settings({}, {}, {}), rocm)["rocm_version"].value == "10.0.0"
    assert next(planned_steps(rocm)) == f"unpack {tmp_path} unless it is in the cache"


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ((*WHOLE, "rocm-core.deb"), r"has \.deb and \.whl files of ROCm"),
        ((CORE, LIBRARIES), "not one ROCm: rocm-sdk-devel is missing"),
        ((DEVEL,), "rocm-sdk-core is missing; rocm-sdk-libraries is missing"),
        ((*WHOLE, DEVEL.replace("10.0.0", "7.14.0")), r"the versions differ: 10\.0\.0, 7\.14\.0"),
        ((*WHOLE, DEVEL.replace("-py3", "-1-py3")), "rocm-sdk-devel is there 2 times"),
        ((CORE, LIBRARIES, DEVEL.replace("linux_x86_64", "win_amd64")), "win_amd64.whl is not for Linux on x86-64"),
        ((*WHOLE, "rocm_sdk_device.whl"), "rocm_sdk_device.whl is not the name of a wheel"),
    ],
)
def test_wheels_that_are_not_one_rocm_are_refused(tmp_path: Path, names: Sequence[str], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        check_source(RocmSource(source=folder_of(tmp_path, names)))


def test_wheels_of_other_version_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"are ROCm 10\.0\.0, but --rocm-version is 7\.14\.0"):
        check_source(RocmSource(source=folder_of(tmp_path, WHOLE), version="7.14.0"))


@pytest.mark.parametrize("index", ["/wheels", "file:///wheels"])
def test_local_index_is_refused_with_option_for_folders(index: str) -> None:
    settings = Settings({"therock_index_url": index}, {}, {})
    with pytest.raises(RequestError, match="is not an http or https URL") as caught:
        find_rocm(settings, Reporter(terminal=False), HostRunner({}), lambda: pytest.fail("connects"))
    assert "--therock-path" in caught.value.hint
