"""The end of a build's receipt: comparison with the published wheels, and installation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ci_build.wheelset.execute import BuildResult
from ci_build.wheelset.rocm_wheels import rocm_line
from ci_build.wheelset.set_build import install_line, published_line, receipt
from ci_build.wheelset.set_plan import make_plan
from tests.support.sets import published_request, wheel_set
from tests.unit.ci_build.test_set_files import rocm_set


def test_published_line_compares_sizes_of_repaired_wheels() -> None:
    record = make_plan(published_request("gfx942")).record()
    *repaired, copy, _ = wheel_set().wheels
    copy = replace(copy, source_sha256=copy.sha256)
    line = published_line(wheel_set(request=record, wheels=(*repaired, copy)))
    assert "run on gfx942 too" in line
    assert line.endswith("6.0 kB -> 3.0 kB (-50%).")


def test_published_line_is_empty_for_other_sets() -> None:
    every = make_plan(published_request()).record()
    for request in (every, {"payload": "source", "targets": ["gfx942"]}):
        assert published_line(wheel_set(request=request)) == ""


def test_install_line_names_folder_and_index_of_amd() -> None:
    result = BuildResult(wheel_set=rocm_set(), folder=Path("/a b"))
    line = install_line(result)
    amd = "https://repo.amd.com/rocm/whl-multi-arch/"
    start = f"pip install --find-links '/a b' --extra-index-url {amd}"
    assert line.startswith(f"{start} 'jax-rocm7-plugin[device-gfx942]==0.10.2+rocm7.")
    assert receipt(result)["install"] == line


def test_rocm_line_says_how_rocm_is_pinned() -> None:
    made = rocm_set()
    assert rocm_line(made).startswith("device-gfx942 installs ROCm 7.14.0")
    assert "device-gfx950" in rocm_line(made)
    assert "--hash-rocm" not in rocm_line(made)
    assert "by version only: --hash-rocm" in rocm_line(replace(made, rocm_packages=()))
    assert rocm_line(wheel_set()).startswith("AMD has no wheels of ROCm 7.2.0")
