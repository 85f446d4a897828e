"""`ci_build gate explain`."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ci_build.cli import run as ci_build
from promotion.evidence import known_tests
from tests.unit.promotion.test_known_tests import entry


def explain(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    status = ci_build(["gate", "explain", "a_test.py::test_x[1]", *words])
    said = capsys.readouterr()
    return status, said.out + said.err


def test_explain_prints_why_entry_does_not_apply(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    today = datetime.now(UTC).date()
    more: dict[str, Any] = {"pattern": "a_test.py", "jax": "any", "families": "any"}
    more["opened"] = today - timedelta(days=9)
    entries = (
        entry(id="now", **more, expires=today + timedelta(days=1)),
        entry(id="over", **more, expires=today),
    )
    monkeypatch.setattr(known_tests, "load_entries", lambda: entries)
    status, said = explain(capsys, "--family=gfx94X-dcgpu")
    applies, over = said.splitlines()
    assert (status, applies.startswith("applies: now, by somebody")) == (0, True)
    assert over.startswith(f"does not apply (it expired on {today}): over")
    _, said = explain(capsys, "--platform=cpu", "--json")
    assert json.loads(said)["entries"][0]["why_not"] == "it is for the platforms rocm"
