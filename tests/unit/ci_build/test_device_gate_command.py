"""Options and output of `gate device`."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ci_build.release import device_gate
from ci_build.release.device_gate import check_options, device_counts, failure_lines, parse_config
from core.errors import RequestError
from core.model import Outcome
from core.process import HostRunner
from core.report import Reporter
from promotion.evidence.signing import Signer
from promotion.evidence.test_results import TestVerdict
from promotion.gates.device.lease import JaxPlatform
from promotion.gates.device.machine import MachineInfo
from promotion.gates.device.request import DeviceRequest
from promotion.gates.device.shards import Shard, ShardResult, digest_of_tests, upload_shard
from promotion.storage.directory_bucket import DirBucket
from tests.support.device_results import RESULTS, WAIVER, checks_of, judged, result
from tests.support.fake_devices import device_config
from tests.support.promoting import staged_in
from tests.support.signing_key import signing_key
from tests.support.wheel_sets import make_wheels

V = TestVerdict


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({}, "needs --family"),
        ({"family": "gfx942", "rocm": Path("/opt"), "rocm_of_set": True}, "--rocm contradicts --rocm-of-set"),
        ({"platform": "cpu", "size": "small"}, "--size requires"),
        ({"family": "gfx942", "workers_per_device": "many"}, "--workers-per-device is invalid"),
        ({"platform": "cpu", "suite_env": ("A=1",)}, "--suite-env requires --jax-tests"),
        ({"platform": "cpu", "offline": True}, "--offline and --wheelhouse need each other"),
        ({"platform": "cuda", "image": "name@sha256:" + "0" * 64}, "--image does not support the platform cuda"),
    ],
)
def test_check_options_refuses_options_without_effect(given_: dict[str, Any], said: str) -> None:
    opts = DeviceRequest(**{"platform": "rocm", **given_})
    with pytest.raises(RequestError, match=said):
        check_options(opts, JaxPlatform(opts.platform))


@pytest.mark.parametrize(
    ("given_", "counts"),
    [
        ({"family": "gfx94X-dcgpu"}, (1, 8)),
        ({"family": "gfx94X-dcgpu", "devices": 2}, (2,)),
        ({"family": "gfx942"}, ()),
        ({"platform": "cuda"}, ()),
        ({"platform": "cuda", "devices": 4}, (4,)),
    ],
)
def test_device_counts_of_families(given_: dict[str, Any], counts: tuple[int, ...]) -> None:
    opts = DeviceRequest(**{"platform": "rocm", **given_})
    assert device_counts(opts, JaxPlatform(opts.platform)) == counts


def test_failure_lines_show_first_failures() -> None:
    many = (*RESULTS, *(result(f"bad{n}", V.FAILED, f"E   number {n}") for n in range(5)))
    lines = list(failure_lines([judged(checks_of(many))]))
    assert "--- tests/a_test.py::bad" in lines
    assert any("apples" in line for line in lines)
    assert [line for line in lines if line.startswith("--- tests/a_test.py::bad")] == [
        "--- tests/a_test.py::bad",
        *(f"--- tests/a_test.py::bad{n}" for n in range(5)),
    ]
    # Each failure has its command; machine failures follow.
    at = lines.index("  tests/a_test.py::bad failed: AssertionError: apples.")
    assert lines[at + 1] == "  Run `run tests/a_test.py::bad`."
    assert lines[-2:] == ["--- tests/a_test.py::wet", "  environment: hipErrorNoDevice"]


def test_config_ends_interrupted_run_before_it_reads_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that a killed run left behind hold memory of the devices, which would mean fewer workers."""
    calls: list[object] = []

    def detect(*_: object) -> MachineInfo:
        calls.append("devices")
        return MachineInfo(devices=())

    monkeypatch.setattr(device_gate, "end_interrupted", calls.append)
    monkeypatch.setattr(device_gate, "detect_machine", detect)
    for work in (None, tmp_path / "work"):
        parse_config(DeviceRequest(platform="cuda", work=work), {}, HostRunner({}), None, "")
    assert calls == ["devices", tmp_path / "work", "devices"]


def test_merge_excuses_only_flakes_with_valid_waiver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiver that was added after the tests ran; tests that were flaky on earlier sets have none."""
    bucket, signer = DirBucket(tmp_path / "bucket"), Signer(signing_key().encode(), origin="tests")
    staged = staged_in(bucket, tmp_path, make_wheels(tmp_path / "w", pythons=("3.12",)))
    config = replace(device_config(), signer=signer)
    results = (result("good", V.PASSED), result("odd", V.FLAKY, "E   once"))
    shard = ShardResult(
        shard=Shard(number=1, count=1),
        target="gfx942",
        settings={**config.settings, "python": "3.12"},
        tests=digest_of_tests([item.id for item in results]),
        problems=(),
        notes=(),
        results=results,
        run={},
        warnings=(("not-retried", "9 tests failed; none was retried."),),
        at="2026-01-02T00:00:00Z",
    )
    upload_shard(bucket, staged, config.gate_name, shard, signer)
    today = datetime.now(UTC).date()
    waiver = replace(WAIVER, opened=today, expires=today + timedelta(days=1))
    for waivers, outcome in (
        ((), Outcome.FAILED),
        ((replace(waiver, index="gfx94X-dcgpu"),), Outcome.FAILED),
        ((replace(waiver, opened=today - timedelta(days=9), expires=today),), Outcome.FAILED),
        ((waiver,), Outcome.PASSED),
    ):
        monkeypatch.setattr(device_gate, "load_waivers", lambda waivers=waivers: waivers)
        reporter = Reporter(terminal=False)
        (evidence,) = device_gate.join(config, staged, bucket, reporter, HostRunner({}))
        assert evidence.outcome is outcome
    assert ("not-retried", "9 tests failed; none was retried.") in {(f.code, f.message) for f in evidence.findings}
    (check,) = (check for check in evidence.details["checks"] if "waivers" in check)
    assert (check["name"], check["outcome"]) == ("tests/a_test.py::odd", "known")
    assert check["waivers"][0]["owner"] == "somebody"
