"""Records of the wheels of a set's ROCm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import urllib3  # noqa: F401 - it tries IPv6 when it is imported, which no test may

from ci_build.cli.options.request_conversion import wheel_set_request
from ci_build.cli.options.settings import Settings
from ci_build.wheelset import set_build
from ci_build.wheelset.rocm_wheels import record_wheels
from ci_build.wheelset.wheel_request import WheelSetRequest
from core.errors import RequestError
from core.http.client import Client
from core.process import HostRunner
from core.report import Reporter
from tests.unit.ci_build.test_set_files import rocm_set

REPORTER = Reporter(terminal=False)
RUNNER = HostRunner({})


def request(tmp_path: Path, **given: object) -> WheelSetRequest:
    values = {
        "payload": "published",
        "rocm_version": "7.14.0",
        "targets": "gfx942",
        "out": str(tmp_path / "dist"),
        **given,
    }
    return wheel_set_request(Settings(values), REPORTER, RUNNER, Client)


def test_wheels_of_build_are_recorded_without_search(tmp_path: Path) -> None:
    core, libraries, device, other = rocm_set().rocm_packages
    unpacked = (device, other, core, libraries)
    found = record_wheels(request(tmp_path), unpacked, RUNNER, REPORTER)
    assert found == (core, libraries, device)


def test_incomplete_wheels_are_not_recorded(tmp_path: Path) -> None:
    core, libraries, device, _ = rocm_set().rocm_packages
    # Locks of older versions have no URLs; the pages of an index link to https only.
    nowhere = replace(device, url="")
    plain = replace(device, url=device.url.replace("https:", "http:"))
    for unpacked in ((), (core, nowhere, libraries), (core, plain, libraries)):
        assert record_wheels(request(tmp_path), unpacked, RUNNER, REPORTER) == ()


def test_dry_run_names_index_of_wheels(tmp_path: Path) -> None:
    asked = request(tmp_path, hash_rocm=True, dry_run=True)
    prepared = set_build.prepare(asked, REPORTER, RUNNER, Client)
    lines = [*set_build.dry_run_lines(prepared, asked)]
    index = "https://repo.amd.com/rocm/whl-multi-arch/"
    assert any(
        line.startswith(f"find the wheels of the ROCm in {index}") for line in lines
    )
    assert "    extras device-gfx942 require wheels of ROCm" in lines


def test_hash_rocm_refuses_rocm_without_wheels(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"no wheels of ROCm 7\.2"):
        request(tmp_path, hash_rocm=True, rocm_version="7.2.0")
