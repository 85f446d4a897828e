"""Options of clusters: contradictions and values without effect."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from unittest.mock import Mock

import cloup
import pytest
from click.testing import CliRunner

from ci_build.cli import run
from ci_build.cli.options.cluster_options import cluster_options, cluster_request
from ci_build.cluster.cluster_request import SLURM, ClusterRequest
from ci_build.cluster.connection import connected
from core.errors import MachineError, RequestError
from core.report import NoProgress


def read(*words: str, **environment: str) -> ClusterRequest | None:
    """Return the request of a command line; raise its error."""
    found: list[ClusterRequest | None] = []

    @cloup.command()
    @cluster_options
    def command(**given: object) -> None:
        found.append(cluster_request(given))
        assert not given

    done = CliRunner().invoke(command, words, env=environment)
    if done.exception:
        raise done.exception
    return found[0]


def test_no_options_mean_this_machine() -> None:
    assert read() is None


@pytest.mark.parametrize(
    ("text", "address", "jobs"),
    [
        ("tls://head:8786", "tls://head:8786", 0),
        ("slurm", SLURM, 1),
        ("slurm:16", SLURM, 16),
    ],
)
def test_cluster_comes_from_options_or_environment(
    text: str, address: str, jobs: int, tmp_path: Path
) -> None:
    found = read(f"--cluster={text}", f"--cluster-store={tmp_path}")
    assert found is not None
    assert found.address == address
    assert found.jobs == jobs
    assert found.store == tmp_path
    variables = {"CI_BUILD_CLUSTER": text, "CI_BUILD_CLUSTER_STORE": str(tmp_path)}
    other = read(**variables)
    assert other is not None
    assert other.address == address
    assert other.jobs == jobs
    assert other.store == tmp_path


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--cluster-store=x"], "--cluster-store has no effect without --cluster"),
        (["--cluster=tcp://head:8786"], "--cluster needs --cluster-store"),
        (["--cluster=head:8786", "--cluster-store=x"], "--cluster is invalid"),
        (["--cluster=slurm:0", "--cluster-store=x"], "--cluster is invalid"),
    ],
)
def test_contradictions_are_refused(words: list[str], problem: str) -> None:
    with pytest.raises(RequestError, match=problem):
        read(*words)


def test_missing_packages_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", Mock(return_value=None))
    request = ClusterRequest(address="tcp://h:1", store=tmp_path)
    with pytest.raises(MachineError) as missing, connected(request, NoProgress()):
        pass
    assert "requirements-cluster.lock" in missing.value.hint


def test_build_sends_only_kernels_to_a_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = (f"--cache-dir={tmp_path / 'cache'}", f"--out={tmp_path / 'out'}")
    words = (
        "dist_wheels",
        "--payload=published",
        "--targets=gfx942",
        "--dry-run",
        *folders,
    )
    cluster = ("--cluster=tcp://head:8786", f"--cluster-store={tmp_path / 'store'}")
    assert run([*words, *cluster]) == RequestError.exit_code
    assert "--cluster has no effect without kernels" in capsys.readouterr().err
    assert run([*words, *cluster, "--kernels"]) == 0
    assert "compile on the workers of tcp://head:8786" in capsys.readouterr().out
    assert run([*words, "--kernels"]) == 0
    assert "workers" not in capsys.readouterr().out
