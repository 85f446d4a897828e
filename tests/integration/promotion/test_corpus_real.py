"""The corpus' child with the published wheels: it compiles for an absent GPU and reports events."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from core.process import HostRunner
from promotion.corpus.program_catalog import CHILD, FOLDER, ExpectationKind, load_corpus
from promotion.gates.common.gate_site import make_site, rocm_libraries
from tests.support.gating import gate_context, stage_published

pytestmark = pytest.mark.network

CORPUS = load_corpus("2026-11-20")
FEW = (
    "numpy.elementwise",
    "lax.dot_bf16",
    "sharding.all_reduce",
    "pallas.add",
    "ffi.handlers_sparse",
    "linalg.solve",
)


@dataclass(frozen=True)
class Told:
    """Events of a child."""

    returncode: int
    events: tuple[Mapping[str, Any], ...]

    def end(self, program: str) -> Mapping[str, Any]:
        return next(
            e for e in self.events if e["event"] == "end" and e["program"] == program
        )


Child = Callable[..., Told]


@pytest.fixture(scope="module")
def child(
    real_wheel: Callable[..., Path],
    pinned_python: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Child:
    """Return `child(programs, target=…, spec=…)`, which runs with the published 0.10.2."""
    folder = tmp_path_factory.mktemp("corpus")
    wheels = [
        real_wheel("jax-rocm7-pjrt", "0.10.2"),
        real_wheel("jax-rocm7-plugin", "0.10.2", pinned_python),
    ]
    context = gate_context(
        folder, *stage_published(folder, wheels), HostRunner(os.environ)
    )
    site = make_site(context, pinned_python)
    env = {**site.env, **rocm_libraries(context, site, None).env}

    def run(programs: Sequence[str], *, target: str = "gfx942", spec: str = "") -> Told:
        out = tmp_path_factory.mktemp("out")
        request = {
            "target": target,
            "spec": spec or CORPUS.specs[target],
            "programs": list(programs),
            "out": str(out),
        }
        (out / "request.json").write_text(json.dumps(request))
        argv = [str(site.python), "-I", str(CHILD), str(out / "request.json")]
        done = context.runner.run(argv, env=env, check=False)
        lines = (out / "results.jsonl").read_text().splitlines()
        return Told(done.returncode, tuple(map(json.loads, lines)))

    run.__dict__["python"] = site.python
    return run


def test_failed_program_does_not_stop_others(child: Child) -> None:
    told = child(["image.resize", "fft.fft"])
    expected = CORPUS.expectation("image.resize", "gfx942", "0.10.2")
    assert told.returncode == 0
    assert told.end("image.resize")["outcome"] == "failed"
    assert expected.kind is ExpectationKind.FAILS_WITHOUT_DEVICE
    assert expected.error in told.end("image.resize")["error"]
    assert told.end("fft.fft")["outcome"] == "compiled"


def test_invalid_spec_is_reported_before_programs(child: Child) -> None:
    told = child(FEW, spec="gpu_device_info { colour: 3 }")
    assert told.returncode == 3
    [event] = told.events
    assert event["event"] == "unusable"
    assert "target_config" in event["error"] or "config" in event["error"].lower()


def test_child_and_parent_have_same_programs(child: Child) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import child;"
        " print(*sorted(child.load_programs()))"
    )
    argv = [child.__dict__["python"], "-I", "-c", code, str(FOLDER)]
    told = subprocess.run(
        argv, capture_output=True, text=True, check=True
    ).stdout.split()
    assert told == [program.name for program in CORPUS.programs]
