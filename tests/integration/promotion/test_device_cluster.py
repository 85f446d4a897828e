"""`gate device --cluster`: shards on workers with fake GPUs, in processes of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from ci_build import cli
from promotion.evidence.evidence import read_all
from promotion.evidence.signing import Signer
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import StagedSet
from tests.support.cluster import ClusterProcesses, cluster_processes
from tests.support.fake_devices import offer_every_device
from tests.support.fake_gpus import TESTS
from tests.support.promoting import staged_in
from tests.support.signing_key import signing_key
from tests.support.wheel_sets import make_wheels

FAMILY = ("--family=gfx94X-dcgpu",)


class Gpus:
    """A staged set, and a cluster whose workers have fake GPUs."""

    def __init__(
        self, folder: Path, cluster: ClusterProcesses, patch: pytest.MonkeyPatch
    ) -> None:
        self.folder = folder
        self.cluster = cluster
        self.patch = patch
        self.bucket = DirBucket(folder / "bucket")
        self.staged: StagedSet = staged_in(
            self.bucket, folder, make_wheels(folder / "w", pythons=("3.12",))
        )
        self.notes = folder / "notes"
        self.notes.mkdir()
        cluster.scheduler()

    def worker(self, name: str) -> None:
        """Start a worker that has one GPU."""
        self.patch.setenv("FAKE_GPUS", f"1:gfx942:{self.notes}")
        self.cluster.worker(name, "--nthreads=4", "--resources=gfx942=1")
        self.cluster.wait(name)

    def gate(self, *words: str) -> int:
        where = (f"--bucket={self.bucket.root}", f"--cluster={self.cluster.address}")
        store = f"--cluster-store={self.folder / 'store'}"
        return cli.run(
            [
                "gate",
                "device",
                str(self.staged),
                *FAMILY,
                *where,
                store,
                "--json",
                *words,
            ]
        )

    def shards(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Return process and note of each finished shard."""
        return [
            (path.name.partition(".")[0], json.loads(path.read_text()))
            for path in self.notes.iterdir()
        ]


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpus]:
    monkeypatch.setenv("CI_BUILD_SIGNING_KEY", signing_key())
    offer_every_device(monkeypatch)
    monkeypatch.setattr("ci_build.release.device_cluster.SHARDS", 9)
    with cluster_processes(tmp_path / "cluster") as cluster:
        yield Gpus(tmp_path, cluster, monkeypatch)


def test_worker_runs_one_shard_at_a_time(
    gpus: Gpus, capsys: pytest.CaptureFixture[str]
) -> None:
    gpus.worker("a")
    gpus.worker("b")
    assert gpus.gate() == 0
    (evidence,) = json.loads(capsys.readouterr().out)
    assert evidence["target"] == "gfx942"
    assert evidence["outcome"] == "passed"
    assert evidence["counts"]["passed"] == len(TESTS)
    # Every test ran once; both workers took part, each with one shard at a time.
    notes = gpus.shards()
    assert sorted(chain.from_iterable(note["tests"] for _, note in notes)) == sorted(
        TESTS
    )
    assert len(notes) == 9
    assert len({process for process, _ in notes}) == 2
    for process, note in notes:
        for owner, other in notes:
            if owner == process:
                assert not other["started"] < note["started"] < other["ended"]
    # The evidence is signed with the key of this machine.
    files = [
        file
        for file in read_all(gpus.bucket, gpus.staged).values()
        if file.evidence.gate == "device"
    ]
    assert {file.key for file in files} == {
        Signer(signing_key().encode(), origin="tests").key
    }
    # A second run uses the evidence.
    assert gpus.gate() == 0
    assert len(gpus.shards()) == 9
