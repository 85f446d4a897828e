"""Wheels of other publishers: adopted, and checked by the coverage gate."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci_build.build import adopt
from core.model import Outcome, Severity
from core.process import HostRunner
from promotion.gates.common.runs import run_gates
from promotion.gates.coverage import gate as coverage_gate
from promotion.gates.coverage import kernel_rules
from promotion.stage import stage
from promotion.storage.directory_bucket import DirBucket
from tests.support.silent import Steps

MEMBER = "jax_plugins/xla_rocm7/xla_rocm_plugin.so"


@pytest.mark.heavy
def test_0_12_needs_its_rules_and_nothing_else(
    real_wheel: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = [str(real_wheel(name, "0.12.0")) for name in ("jax-rocm7-pjrt", "jax-rocm7-plugin")]
    made = adopt.adopt(wheels, out=tmp_path / "set", rocm=None, progress=Steps())
    assert len(made.targets) == 27
    bucket = DirBucket(tmp_path / "bucket")
    staged = stage(bucket, tmp_path / "set")
    # Both runs judge the same libraries, which are gigabytes once they are unpacked.
    read, known = coverage_gate._read, dict[str, Any]()

    def read_once(file: Path, wheel: str, path: str, promised: tuple[str, ...], **more: Any) -> Any:
        if path not in known:
            known[path] = read(file, wheel, path, promised, **more)
        return known[path]

    monkeypatch.setattr(coverage_gate, "_read", read_once)

    def judge(targets: tuple[str, ...]) -> dict[str, list[str]]:
        found = run_gates(
            bucket, staged, [coverage_gate.GATE], HostRunner(os.environ), Steps(), targets=targets, redo=True
        )
        assert all(evidence.outcome is not Outcome.ERROR for evidence in found)
        return {e.target: [f.message for f in e.findings if f.severity is Severity.ERROR] for e in found}

    assert not any(judge(made.targets).values())
    rules = kernel_rules.load_rules()
    monkeypatch.setattr(coverage_gate, "load_rules", lambda: [replace(rule, targets=("*",)) for rule in rules])
    without = judge(("gfx942", "gfx1100"))
    for target, count in (("gfx942", 6772), ("gfx1100", 8439)):
        (text,) = without[target]
        assert f"{MEMBER} has no code for {target} of {count} registered kernels" in text
