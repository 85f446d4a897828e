"""Shards of the gate device as tasks: their contents, their results, and the GPUs of a worker."""

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
    leased,
    run_on_cluster,
    run_shard,
)
from core.errors import CiBuildError, GateError, MachineError, RequestError
from core.model import Outcome
from core.process import HostRunner
from core.report import Reporter
from core.tasks import Task, TaskResult
from promotion.evidence.evidence import ENVIRONMENT
from promotion.evidence.test_results import TestResult, TestVerdict
from promotion.gates.common.gate_context import Check, GateContext, error
from promotion.gates.device import device_cluster as cluster
from promotion.gates.device.config import DeviceGateConfig
from promotion.gates.device.device_cluster import (
    run_shards,
    with_offered_devices,
)
from promotion.gates.device.device_request import DeviceRequest
from promotion.gates.device.gpu_machine import KUBE, MachineInfo
from promotion.gates.device.shards import (
    Shard,
    ShardResult,
    digest_of_tests,
    upload_shard,
)
from promotion.stage import read_staged
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import StagedSet
from tests.support.device_results import judged
from tests.support.fake_devices import device_config, fake_devices
from tests.support.promoting import staged_in
from tests.support.silent import NoProcesses, Silent
from tests.support.wheel_sets import make_set, make_wheels, write_set

Change = Callable[[ShardResult], ShardResult]
NO_TASKS: Any = None


class FakeTasks:
    """Runs the tasks of shards at once; some fail, some are lost, and some results are changed."""

    def __init__(
        self, bucket: DirBucket, staged: StagedSet, config: DeviceGateConfig
    ) -> None:
        self.bucket = bucket
        self.staged = staged
        self.config = config
        self.failed: dict[str, type[CiBuildError]] = {}
        self.change: Change = lambda shard: shard
        self.tasks: list[Task] = []

    def run(self, tasks: Sequence[Task], work: Path) -> Iterator[TaskResult]:
        self.tasks = [*tasks]
        for task in reversed(tasks):
            number, count = task.arguments["shard"]
            shard = f"{number}/{count}"
            folder = work / shard[0]
            if shard in self.failed:
                yield TaskResult(
                    task=task,
                    folder=folder,
                    worker="w",
                    error="It broke.",
                    kind=self.failed[shard],
                )
                continue
            result = ShardResult(
                shard=Shard(number=number, count=count),
                target="gfx942",
                settings=self.config.settings,
                tests=digest_of_tests(["a.py::x", "a.py::y"]),
                problems=(),
                notes=(),
                results=(
                    TestResult(id=f"a.py::{shard[0]}", verdict=TestVerdict.PASSED),
                ),
                run={},
                at="2026-01-01T00:00:00Z",
            )
            changed = self.change(result) if shard.startswith("2") else result
            other = DirBucket(work / f"bucket-{shard[0]}")
            key = upload_shard(other, self.staged, self.config.gate_name, changed)
            (folder / "device/gfx942").mkdir(parents=True)
            (Path(other.root) / key).rename(folder / "device/gfx942" / Path(key).name)
            (folder / "device/gfx942" / f"{shard[0]}.log.gz").write_text("log")
            yield TaskResult(task=task, folder=folder, worker="w")


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> tuple[DirBucket, StagedSet]:
    folder = tmp_path_factory.mktemp("cluster")
    bucket = DirBucket(folder / "bucket")
    return bucket, staged_in(
        bucket, folder, make_wheels(folder / "w", pythons=("3.12",))
    )


@pytest.fixture
def place(
    staged: tuple[DirBucket, StagedSet],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[GateContext, DeviceGateConfig, FakeTasks]:
    monkeypatch.setattr(cluster, "SHARDS", 2)
    bucket, one = staged
    config = with_offered_devices(device_config(suite="s", python="3.12"), "gfx942")
    context = GateContext(
        bucket=bucket,
        staged=one,
        wheel_set=read_staged(bucket, one),
        targets=("gfx942",),
        runner=NoProcesses(),
        progress=Silent(),
        work=tmp_path,
        shared=tmp_path,
    )
    return context, config, FakeTasks(bucket, one, config)


Place = tuple[GateContext, DeviceGateConfig, FakeTasks]


def test_shards_are_tasks_for_workers_with_gpus(place: Place) -> None:
    context, config, tasks = place
    request = replace(
        config.request,
        jax_tests=f"https://example.org/jax@{'a' * 40}",
        size="small",
        devices=2,
    )
    config = with_offered_devices(replace(config, request=request), "gfx942:sramecc+")
    tasks.config = config
    shards = run_shards(context, config, tasks)
    assert [str(shard.shard) for shard in shards] == ["1/2", "2/2"]
    first, _ = tasks.tasks
    assert first.resources == {"gfx942": 2.0}
    assert first.memory_mb == 12884
    assert first.label == "device gfx942 shard 1/2"
    assert first.arguments["request"] == {
        "platform": "rocm",
        "family": "gfx94X-dcgpu",
        "jax_tests": request.jax_tests,
        "size": "small",
        "devices": 2,
        "python": "3.12",
    }
    assert first.arguments["shard"] == [1, 2]
    logs = [
        key
        for key in context.bucket.list(context.staged.evidence)
        if key.endswith(".log.gz")
    ]
    assert len(logs) == 2


def test_shards_of_different_tests_are_refused(place: Place) -> None:
    context, config, tasks = place
    tasks.change = lambda shard: replace(shard, tests="0" * 64)
    with pytest.raises(GateError, match="collected different tests"):
        run_shards(context, config, tasks)


def test_failed_and_lost_shards_end_the_gate(place: Place) -> None:
    context, config, tasks = place
    tasks.failed = {"1/2": MachineError, "2/2": CiBuildError}
    with pytest.raises(
        CiBuildError, match="device gfx942 shard 1/2 on w: It broke"
    ) as raised:
        run_shards(context, config, tasks)
    assert type(raised.value) is GateError


def test_task_without_shard_is_refused(place: Place, tmp_path: Path) -> None:
    context, config, _ = place
    done: Any = SimpleNamespace(
        folder=tmp_path / "none", task=SimpleNamespace(label="shard 1/2")
    )
    with pytest.raises(GateError, match="returned 0 shards"):
        cluster._received(context, config, done)


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
                "gfx": "",
                "bucket": "",
                "shard": [1, 8],
            },
            context,
        )


def test_tasks_of_a_worker_share_neither_gpus_nor_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    devices = (*fake_devices(4), *fake_devices(1, gfx="gfx950"))
    monkeypatch.setattr(
        device_cluster, "detect_machine", lambda *_: MachineInfo(devices=devices)
    )
    monkeypatch.setattr(
        device_cluster,
        "detect_allotment",
        lambda _: type("Allotment", (), {"cores": 10}),
    )
    runner = HostRunner(
        {
            "ROCR_VISIBLE_DEVICES": "0,1,2",
            "HIP_VISIBLE_DEVICES": "0,2",
            "KEPT": "1",
        }
    )
    with (
        leased("gfx942", 1, runner) as first,
        leased("gfx942", 1, runner) as second,
    ):
        tokens = [first["ROCR_VISIBLE_DEVICES"], second["ROCR_VISIBLE_DEVICES"]]
        assert tokens == [devices[0].token, devices[2].token]
        assert first[KUBE] == "5"
        assert first["KEPT"] == "1"
        assert "HIP_VISIBLE_DEVICES" not in first
        with (
            pytest.raises(
                MachineError, match="0 free GPUs of gfx942, and a task needs 1"
            ),
            leased("gfx942", 1, runner),
        ):
            pass
    with leased("gfx942", 2, runner) as both:
        assert both["ROCR_VISIBLE_DEVICES"] == ",".join(tokens)
        assert both[KUBE] == "10"
    with leased("", 1, runner) as same:
        assert same == runner.environment
