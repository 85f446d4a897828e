"""Options that name a ROCm: contradictions, and options without effect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ci_build.cli.options.rocm_options import find_rocm
from ci_build.cli.options.settings import Settings
from ci_build.rocm.rocm_request import RocmRequest
from core.errors import RequestError
from core.http.client import Client
from core.process import HostRunner
from core.report import Reporter

PATH = {"therock_path": "/opt/rocm"}
INDEX = {"therock_index_url": "http://127.0.0.1:9/"}
NEED_A_ROCM = (
    "therock_sha256",
    "rocm_lock",
    "therock_listing",
    "cache_limit",
)


def find(
    given: Mapping[str, Any], origins: Mapping[str, str] | None = None
) -> RocmRequest | None:
    settings = Settings(given, origins)
    return find_rocm(settings, Reporter(terminal=False), HostRunner({}), Client)


@pytest.mark.parametrize(
    ("given", "phrase"),
    [
        (
            {**PATH, "therock": "nightly"},
            "both name a ROCm.*--therock needs --family or --targets",
        ),
        ({**PATH, **INDEX}, "both name a ROCm"),
        ({**PATH, "rocm_manifest": "x"}, "--rocm-manifest has no effect"),
        ({**PATH, "family": "gfx94X-dcgpu"}, "--family has no effect"),
        ({"therock_index_url": "file:///wheels"}, "not an http or https URL"),
        ({**INDEX, "therock_sha256": "x"}, "applies to a tarball"),
        (
            {"therock": "nightly", "family": ","},
            "--therock needs --family or --targets",
        ),
        ({"locked": True, "rocm_lock": "absent.lock"}, "--locked needs absent.lock"),
        *(
            ({name: "10GB"}, f"--{name.replace('_', '-')} has no effect")
            for name in NEED_A_ROCM
        ),
        ({"require_checksum": True}, "--require-checksum has no effect"),
    ],
)
def test_contradicting_rocm_options_are_refused(
    given: Mapping[str, Any], phrase: str
) -> None:
    with pytest.raises(RequestError, match=phrase):
        find(given)


def test_require_checksum_of_machine_applies_to_rocms_only() -> None:
    origins = {"require_checksum": "CI_BUILD_REQUIRE_CHECKSUM"}
    assert find({"require_checksum": True}, origins) is None
    rocm = find({**PATH, "require_checksum": True}, origins)
    assert rocm is not None
    assert rocm.require_checksum
