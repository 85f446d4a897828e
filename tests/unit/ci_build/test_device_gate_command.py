"""Options and output of `gate device`."""

from __future__ import annotations

from typing import Any

import pytest

from ci_build.release.device_gate import (
    SHOWN_FAILURES,
    check_options,
    covered_targets,
    device_counts,
    failure_lines,
)
from core.errors import RequestError
from promotion.gates.device.device_request import DeviceRequest
from tests.support.device_results import RESULTS, checks_of, judged
from tests.support.fake_devices import device_config
from tests.support.sets import wheel_set


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({}, "needs --family"),
        ({"platform": "cpu", "family": "gfx942"}, "does not use --family"),
        ({"platform": "cpu", "size": "small"}, "--size requires"),
    ],
)
def test_check_options_refuses_options_without_effect(
    given_: dict[str, Any], said: str
) -> None:
    opts = DeviceRequest(**{"platform": "rocm", **given_})
    with pytest.raises(RequestError, match=said):
        check_options(opts)


@pytest.mark.parametrize(
    ("given_", "counts"),
    [
        ({"family": "gfx94X-dcgpu"}, (1, 8)),
        ({"family": "gfx94X-dcgpu", "devices": 2}, (2,)),
        ({"family": "gfx942"}, ()),
        ({"platform": "cuda"}, ()),
    ],
)
def test_device_counts_of_families(
    given_: dict[str, Any], counts: tuple[int, ...]
) -> None:
    opts = DeviceRequest(**{"platform": "rocm", **given_})
    assert device_counts(opts) == counts


def test_set_without_target_of_the_family_is_refused() -> None:
    assert covered_targets(device_config(), wheel_set()) == ("gfx942",)
    with pytest.raises(RequestError, match="has no target of gfx1151"):
        covered_targets(device_config(family="gfx1151"), wheel_set())


def test_failure_lines_show_first_tracebacks() -> None:
    lines = list(failure_lines([judged(checks_of(RESULTS))]))
    assert sum(line.startswith("---") for line in lines) == SHOWN_FAILURES
    at = lines.index("--- tests/a_test.py::bad")
    assert lines[at + 2] == "    E   AssertionError: apples"
