"""Results of checks and tests in the evidence of promoted sets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ci_build.cli import run as ci_build
from ci_build.cli.commands.compatibility import _newest_lock
from ci_build.rocm.lock import RocmLock, dump_lock, write_lock
from core.digests import sha256_of
from core.errors import BucketError
from core.model import ROCM_LOCK, Tier
from promotion.compatibility.module_support import CheckOutcome, read_checks
from promotion.evidence.evidence import record
from promotion.evidence.test_results import TestResult, TestVerdict, dump_results
from promotion.gates.common.gate_context import Check as GateCheck
from promotion.gates.common.gate_runs import check_record
from promotion.gates.device import device_evidence as device
from promotion.gates.device.run_outcome import RUN
from promotion.stage import read_staged
from promotion.storage.directory_bucket import DirBucket
from tests.support import sets
from tests.support.promoting import RELEASED, go, staged_in
from tests.support.wheel_sets import make_wheels, passing_evidence

RESULTS = tuple(
    TestResult(
        id=f"a_test.py::{name}",
        verdict=verdict,
        message=message,
        attempts=1,
    )
    for name, verdict, message in (
        ("good", TestVerdict.PASSED, ""),
        ("flaky", TestVerdict.FLAKY, "E   slow"),
        ("suites_own", TestVerdict.SKIPPED, "only on TPU"),
        ("machines", TestVerdict.ENVIRONMENT, "E   hipErrorNoDevice"),
    )
)


LATER = ("2026-01-02T03:04:06Z", "2026-01-02T03:04:07Z")
LOCK = RocmLock(
    source="https://example.org/rocm.tar.gz",
    sha256="ab" * 32,
    size=1,
    version="7.2.0",
    families=(),
    targets=("gfx942",),
    compiler="clang 20",
    libraries={"libhipblas.so.3": "3.1.70200"},
    device_libraries={},
)


def test_compat_prints_outcomes_of_promoted_checks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = DirBucket(tmp_path / "bucket")
    staged = staged_in(bucket, tmp_path, make_wheels(tmp_path))
    results = {device.RESULTS: device.pack(dump_results(RESULTS))}
    files = device.upload(bucket, staged, "device", "gfx942", results)
    run = GateCheck(name=RUN, target="gfx942", times=0, details={"files": files})
    checks = [*device.checks_of_tests(RESULTS, "gfx942", str, ()), run]
    evidence = replace(
        passing_evidence(read_staged(bucket, staged))[0],
        gate="device",
        target="gfx942",
        tier=Tier.DEVICE,
        details={"checks": [check_record(check) for check in checks]},
    )
    assert read_checks(bucket, staged.evidence, evidence).checks == (
        CheckOutcome(name="a_test.py::flaky", outcome="passed"),
        CheckOutcome(name="a_test.py::good", outcome="passed"),
        CheckOutcome(
            name="a_test.py::machines", outcome="skipped", reason="environment"
        ),
        CheckOutcome(name="a_test.py::suites_own", outcome="skipped", reason="skipped"),
    )
    known = GateCheck(name="fft.a", known="needs hipFFT", target="gfx942")
    good = GateCheck(name="fft.b", target="gfx942")
    body = {"checks": [check_record(known), check_record(good)]}
    compiled = [
        replace(item, started=LATER[0], ended=LATER[1], details=body)
        for item in passing_evidence(read_staged(bucket, staged))
        if (item.gate, item.target) == ("compile", "gfx942")
    ]
    record(bucket, staged, compiled[0])
    go(bucket, staged)
    write_lock(tmp_path / "rocm.lock", LOCK)
    words = [f"--rocm-lock={tmp_path}/rocm.lock"]
    assert (
        ci_build(
            ["index", "compat", "multi-arch", f"--bucket={tmp_path}/bucket", *words]
        )
        == 0
    )
    table = capsys.readouterr().out
    assert f"(v2/multi-arch/sets/{staged.digest}/report-" in table
    assert f"| https://example.org/rocm.tar.gz, sha256 {LOCK.sha256} |" in table
    (row,) = [line for line in table.splitlines() if line.startswith("| jax.numpy.fft")]
    assert row.endswith(
        "| 0.10.2 | 7.2.0 | gfx942: compiled | fft.a: needs hipFFT (gfx942) |"
    )


def test_newest_lock_refuses_changed_lock(tmp_path: Path) -> None:
    bucket = DirBucket(tmp_path)
    data = dump_lock(LOCK).encode()
    promoted = sets.promoted_set(files={ROCM_LOCK: "0" * 64})
    bucket.put_if_absent(
        RELEASED.set_file(promoted.set_digest, ROCM_LOCK), data, sha256=sha256_of(data)
    )
    with pytest.raises(BucketError):
        _newest_lock(bucket, RELEASED, [sets.promotion_entry(1, promoted)])
