"""Results of checks and tests in the evidence of promoted sets."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ci_build.cli import run as ci_build
from ci_build.cli.commands.compatibility import _images, _newest_lock
from ci_build.rocm.lock import RocmLock, dump_lock, write_lock
from core.errors import BucketError, RequestError
from core.model import ROCM_LOCK, Tier
from promotion.compatibility.promoted_results import CheckOutcome, read_evidence
from promotion.evidence.evidence import record
from promotion.evidence.test_results import TestResult, TestVerdict, dump_results
from promotion.gates.common.gate_context import Check as GateCheck
from promotion.gates.common.gate_runs import check_record
from promotion.gates.device import device_evidence as device
from promotion.gates.device.baseline import RUN
from promotion.stage import read_staged
from promotion.storage.bucket import sha256_of
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import ReleasedIndex
from tests.support import sets
from tests.support.promoting import RELEASED, go, staged_in
from tests.support.wheel_sets import make_wheels, passing_evidence

RESULTS = tuple(
    TestResult(
        id=f"a_test.py::{name}",
        verdict=verdict,
        message=message,
        entry=entry,
        attempts=1,
    )
    for name, verdict, message, entry in (
        ("good", TestVerdict.PASSED, "", ""),
        ("flaky", TestVerdict.FLAKY, "E   slow", ""),
        ("known", TestVerdict.SKIPPED, "no matrix cores", "no-mfma"),
        ("suites_own", TestVerdict.SKIPPED, "only on TPU", "suite"),
        ("machines", TestVerdict.ENVIRONMENT, "E   hipErrorNoDevice", ""),
    )
)


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


def test_read_evidence_returns_each_check_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = DirBucket(tmp_path / "bucket")
    staged = staged_in(bucket, tmp_path, make_wheels(tmp_path))
    wheel_set = read_staged(bucket, staged)
    files = device.upload(
        bucket,
        staged,
        "device",
        "gfx942",
        {device.RESULTS: device.pack(dump_results(RESULTS))},
    )
    checks = [
        *device.checks_of_tests(RESULTS, "gfx942", str, ()),
        GateCheck(
            name=RUN,
            target="gfx942",
            times=0,
            details={"files": files, "image": "jax@sha256:12"},
        ),
    ]
    compiled = next(
        e
        for e in passing_evidence(wheel_set)
        if (e.gate, e.target) == ("compile", "gfx942")
    )
    later = replace(
        compiled, started="2026-01-02T03:04:06Z", ended="2026-01-02T03:04:07Z"
    )
    known = GateCheck(name="numpy.fft", known="needs hipFFT", target="gfx942")
    for gate, tier, those in (
        ("device", Tier.DEVICE, checks),
        ("compile", compiled.tier, [known]),
    ):
        told = {"checks": [check_record(check) for check in those]}
        record(bucket, staged, replace(later, gate=gate, tier=tier, details=told))
    go(bucket, staged)
    # The evidence and its results are promoted with the set, byte for byte.
    name = files[device.RESULTS]["name"]
    assert bucket.get(
        RELEASED.set_file(staged.digest, f"evidence/{name}")
    ) == bucket.get(staged.evidence + name)
    said = read_evidence(bucket, ReleasedIndex(index=staged.index), staged.digest)
    found = {
        (word.evidence.gate, word.evidence.target): word.checks
        for word in said.values()
    }
    assert found["compile", "gfx942"] == (
        CheckOutcome(name="numpy.fft", outcome="known", reason="needs hipFFT"),
    )
    assert found["device", "gfx942"] == (
        CheckOutcome(name="a_test.py::flaky", outcome="passed"),
        CheckOutcome(name="a_test.py::good", outcome="passed"),
        CheckOutcome(
            name="a_test.py::known", outcome="known", reason="no matrix cores (no-mfma)"
        ),
        CheckOutcome(
            name="a_test.py::machines", outcome="skipped", reason="environment"
        ),
        CheckOutcome(name="a_test.py::suites_own", outcome="skipped", reason="skipped"),
    )
    # The command combines it with the locked ROCm and with the built images.
    write_lock(tmp_path / "rocm.lock", LOCK)
    (tmp_path / "images.json").write_text(
        json.dumps([{"name": "jax", "digest": "sha256:12", "jax": "0.10.2"}])
    )
    words = [f"--rocm-lock={tmp_path}/rocm.lock", f"--images={tmp_path}/images.json"]
    assert (
        ci_build(
            ["index", "compat", "multi-arch", f"--bucket={tmp_path}/bucket", *words]
        )
        == 0
    )
    table = capsys.readouterr().out
    link = re.escape(
        f"[device gfx942](v2/multi-arch/sets/{staged.digest}/evidence/device/gfx942/"
    )
    assert re.search(
        rf"^\| jax \| sha256:12 \| 0\.10\.2 \| – \| – \| – \| {link}\w+\.json\) \|$",
        table,
        re.MULTILINE,
    )
    source = f"https://example.org/rocm.tar.gz, sha256 {LOCK.sha256}"
    assert re.search(
        rf"^\| hipBLAS \| 3\.1\.70200 \| .+ \| .+ \| {re.escape(source)} \|$",
        table,
        re.MULTILINE,
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


@pytest.mark.parametrize("text", ["{}", '[{"name": "of a dry run"}]'])
def test_images_refuses_list_without_digests(tmp_path: Path, text: str) -> None:
    (tmp_path / "images.json").write_text(text)
    with pytest.raises(RequestError, match="a list of objects with a digest"):
        _images(tmp_path / "images.json")
