"""Steps of a kernel build whose output is refused, with a shell as the compiler."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from core.errors import KernelError
from core.process import HostRunner
from kernels import step_run
from kernels.compiled_store import KernelStore


@pytest.mark.parametrize(
    ("script", "checks", "said"),
    [
        ("exit 3", {}, "exit code 3"),
        ("true", {}, "exit code 0"),
        (
            'echo >"$0"; echo "warning: argument unused" >&2',
            {},
            "the compiler ignored an option",
        ),
        ('echo 1234 >"$0"', {"exports": []}, "is not an ELF file"),
    ],
)
def test_step_refuses_output(
    script: str,
    checks: dict[str, Any],
    said: str,
    tmp_path: Path,
) -> None:
    step = step_run.StepRun(
        label="u",
        module="m",
        target="",
        key="k",
        argv=("sh", "-c", script, "{out}"),
        name="u.o",
        environment={},
        checks=checks,
    )
    with pytest.raises(KernelError, match=said):
        step_run.run_step(step, KernelStore(tmp_path), HostRunner(os.environ))
    assert not list(tmp_path.rglob("u.o"))


def test_objects_with_one_bundle_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        step_run, "fatbin_symbols", lambda data, label: ["__hip_fatbin_a"]
    )
    host = tmp_path / "host.o"
    host.touch()
    with pytest.raises(KernelError, match="needs one unique fat binary symbol"):
        step_run.prepare_link(
            [
                (str(host), {}),
                (str(host), {}),
            ],
            tmp_path,
        )
