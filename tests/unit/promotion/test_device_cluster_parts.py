"""Shards of the gate device as tasks: their contents and their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci_build.release import device_cluster, device_gate
from ci_build.release.device_cluster import (
    check_cluster_options,
    run_on_cluster,
    run_shard,
    shard_checks,
)
from core.errors import CiBuildError, GateError, MachineError, RequestError
from core.model import Outcome
from core.process import HostRunner
from core.report import Reporter
from core.tasks import Task, TaskResult
from promotion.evidence.evidence import ENVIRONMENT
from promotion.evidence.test_results import TestResult, TestVerdict
from promotion.gates.common.gate_context import Check, GateContext, error
from promotion.gates.device.config import DeviceGateConfig
from promotion.gates.device.device_request import DeviceRequest
from promotion.gates.device.run_outcome import RunOutcome, merge, write_outcome
from promotion.stage import read_staged
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import StagedSet
from tests.support.device_results import judged
from tests.support.fake_devices import device_config
from tests.support.promoting import staged_in
from tests.support.silent import NoProcesses, Silent
from tests.support.wheel_sets import make_set, make_wheels, write_set

NO_TASKS: Any = None


def outcome(*tests: str, verdict: TestVerdict = TestVerdict.PASSED) -> RunOutcome:
    results = tuple(TestResult(id=test, verdict=verdict) for test in tests)
    return RunOutcome(results=results, collected=("a.py::1", "a.py::2"), details={})


class FakeTasks:
    """Runs the tasks of shards at once; some fail, some are lost."""

    def __init__(self) -> None:
        self.failed: dict[int, type[CiBuildError]] = {}
        self.tasks: list[Task] = []

    def run(self, tasks: Sequence[Task], work: Path) -> Iterator[TaskResult]:
        self.tasks = [*tasks]
        for task in reversed(tasks):
            number, _ = task.arguments["shard"]
            folder = work / str(number)
            folder.mkdir()
            if kind := self.failed.get(number):
                text = "It broke."
                yield TaskResult(
                    task=task, folder=folder, worker="w", error=text, kind=kind
                )
                continue
            write_outcome(outcome(f"a.py::{number}"), folder, b"log of %d" % number)
            yield TaskResult(task=task, folder=folder, worker="w")


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> tuple[DirBucket, StagedSet]:
    folder = tmp_path_factory.mktemp("cluster")
    bucket = DirBucket(folder / "bucket")
    return bucket, staged_in(
        bucket, folder, make_wheels(folder / "w", pythons=("3.12",))
    )


@pytest.fixture
def context(
    staged: tuple[DirBucket, StagedSet],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> GateContext:
    monkeypatch.setattr(device_cluster, "SHARDS", 2)
    bucket, one = staged
    return GateContext(
        bucket=bucket,
        staged=one,
        wheel_set=read_staged(bucket, one),
        targets=("gfx942",),
        runner=NoProcesses(),
        progress=Silent(),
        work=tmp_path,
        shared=tmp_path,
    )


def checks(
    context: GateContext, tasks: FakeTasks, config: DeviceGateConfig
) -> list[Check]:
    return [*shard_checks(context, config, tasks=tasks, gfx="gfx942")]


def test_shards_are_tasks_for_workers_with_gpus(context: GateContext) -> None:
    tasks = FakeTasks()
    url = f"https://example.org/jax@{'a' * 40}"
    config = device_config(suite="s", python="3.12", jax_tests=url, size="small")
    tests, run = checks(context, tasks, config)
    assert (tests.name, tests.times) == ("a.py", 2)
    assert len(run.details["shards"]) == 2
    files = run.details["files"]
    assert {*files} == {"results.json.gz", "1.logs.tar.gz", "2.logs.tar.gz"}
    for file in files.values():
        assert context.bucket.head(context.staged.evidence + file["name"])
    first, _ = tasks.tasks
    assert first.resources == {"gfx942": 1.0}
    assert first.label == "device gfx942 shard 1/2"
    assert first.arguments["request"] == {
        "platform": "rocm",
        "family": "gfx94X-dcgpu",
        "jax_tests": url,
        "size": "small",
        "python": "3.12",
    }


def test_merge_refuses_different_tests_and_keeps_failures() -> None:
    good = outcome("a.py::1", "b.py")
    bad = outcome("b.py", verdict=TestVerdict.FAILED)
    for both in ([good, bad], [bad, good]):
        verdicts = {result.id: result.verdict for result in merge(both).results}
        assert verdicts == {
            "a.py::1": TestVerdict.PASSED,
            "b.py": TestVerdict.FAILED,
        }
    with pytest.raises(GateError, match="collected different tests"):
        merge([good, replace(bad, collected=())])


def test_failed_and_lost_shards_end_the_gate(context: GateContext) -> None:
    tasks = FakeTasks()
    tasks.failed = {1: MachineError, 2: CiBuildError}
    with pytest.raises(
        CiBuildError, match="device gfx942 shard 1/2 on w: It broke"
    ) as raised:
        checks(context, tasks, device_config())
    assert type(raised.value) is GateError


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tests": ("a.py::x",)}, "--test cannot be used with --cluster"),
        ({"platform": "cuda"}, "--platform=cuda cannot be used with --cluster"),
        ({"jax_tests": "/home/me/jax"}, "--jax-tests is a folder of this machine"),
    ],
)
def test_options_of_one_machine_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        check_cluster_options(DeviceRequest(**{"platform": "cpu", **given}))


@pytest.mark.parametrize(
    "run", [device_gate.run, partial(run_on_cluster, tasks=NO_TASKS)]
)
def test_python_that_the_set_lacks_is_refused(
    run: Callable[..., object],
    staged: tuple[DirBucket, StagedSet],
) -> None:
    config = device_config("cpu", python="3.9")
    more = {
        "staged": staged[1],
        "bucket": staged[0],
        "reporter": Reporter(terminal=False),
    }
    with pytest.raises(RequestError, match="does not support Python"):
        run(config, **more, runner=NoProcesses(), redo=False, channel="local")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ENVIRONMENT, MachineError),
        ("no-test-ran", GateError),
    ],
)
def test_task_whose_gate_made_no_shard_fails(
    code: str,
    expected: type[CiBuildError],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wheels = make_wheels(tmp_path / "w", pythons=("3.12",))
    found = judged([Check(name="run", findings=(error(code, "It broke.", "Fix it."),))])
    monkeypatch.setattr(device_gate, "parse_config", lambda *_: device_config("cpu"))
    found = replace(found, outcome=Outcome.ERROR)
    monkeypatch.setattr(device_gate, "run", lambda *_, **__: (found,))
    context: Any = SimpleNamespace(
        inputs={
            "set": write_set(tmp_path / "set", wheels, make_set(wheels)),
        },
        scratch=tmp_path / "scratch",
        folder=tmp_path / "folder",
        runner=HostRunner({}),
    )
    context.folder.mkdir()
    with pytest.raises(expected, match="It broke"):
        run_shard(
            {
                "request": {"platform": "cpu"},
                "bucket": "",
                "shard": [1, 8],
            },
            context,
        )
