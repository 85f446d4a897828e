"""Options of clusters: contradictions, missing files and values without effect."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import cloup
import pytest
from click.testing import CliRunner

from ci_build.cli import run
from ci_build.cli.options.cluster_options import (
    cluster_options,
    cluster_request,
    parse_resources,
)
from ci_build.cluster.cluster_request import ClusterRequest
from ci_build.cluster.dask import dask_module
from core.errors import MachineError, RequestError


@cloup.command()
@cluster_options
def command(**given: object) -> None:
    click.echo(repr(cluster_request(given)))
    assert not given


def read(*words: str, **environment: str) -> str:
    """Return the request of a command line as text; raise its error."""
    done = CliRunner().invoke(command, words, env=environment)
    if done.exception:
        raise done.exception
    return done.stdout.strip()


@pytest.fixture
def pem(tmp_path: Path) -> Path:
    (tmp_path / "x.pem").touch()
    return tmp_path / "x.pem"


def test_no_options_mean_this_machine() -> None:
    assert read() == "None"


def test_cluster_comes_from_options_or_environment(tmp_path: Path, pem: Path) -> None:
    store = f"--cluster-store={tmp_path}"
    tls = (f"--cluster-ca={pem}", f"--cluster-cert={pem}")
    plain = ClusterRequest(address="tcp://head:8786", store=str(tmp_path))
    assert read("--cluster=tcp://head:8786", store) == repr(plain)
    assert read(
        CI_BUILD_CLUSTER="tcp://head:8786", CI_BUILD_CLUSTER_STORE=str(tmp_path)
    ) == repr(plain)
    safe = ClusterRequest(
        address="tls://head:1", store="s3://b/p", ca=str(pem), cert=str(pem)
    )
    assert read("--cluster=tls://head:1", "--cluster-store=s3://b/p", *tls) == repr(
        safe
    )


def test_slurm_jobs_come_from_options_or_environment(tmp_path: Path) -> None:
    words = (
        "--cluster=slurm",
        f"--cluster-store={tmp_path}",
        "--slurm=cpus-per-task=2",
        "--slurm=mem=4G",
    )
    assert "SlurmRequest(jobs=3, cpus=2, memory_mb=4096," in read(
        *words, "--slurm=jobs=3"
    )
    environment = {"CI_BUILD_SLURM": "jobs=3 cpus-per-task=2 mem=4G"}
    assert "SlurmRequest(jobs=3, cpus=2, memory_mb=4096," in read(
        *words[:2], **environment
    )
    (tmp_path / "slurm.toml").write_text("jobs = 5\n")
    assert "SlurmRequest(jobs=5," in read(
        *words, CI_BUILD_SLURM_FILE=str(tmp_path / "slurm.toml")
    )


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            ["--cluster-ca=x", "--cluster-key=y"],
            "--cluster-ca, --cluster-key has no effect without --cluster",
        ),
        (["--cluster=tcp://head:8786"], "--cluster needs --cluster-store"),
        (["--cluster=head:8786", "--cluster-store=x"], "'head:8786' is no address"),
        (
            ["--cluster=tcp://h:1", "--cluster-store=x", "--cluster-ca={pem}"],
            "--cluster-ca has no effect with tcp://h:1",
        ),
        (
            ["--cluster=tls://h:1", "--cluster-store=x", "--cluster-ca={pem}"],
            "needs --cluster-ca and --cluster-cert",
        ),
        (
            [
                "--cluster=tls://h:1",
                "--cluster-store=x",
                "--cluster-ca={pem}",
                "--cluster-cert=absent.pem",
            ],
            "--cluster-cert does not exist: 'absent.pem'",
        ),
        (
            ["--cluster=tcp://h:1", "--cluster-store=ftp://x/y"],
            "'ftp://x/y' is not a bucket",
        ),
        (
            ["--cluster=tcp://h:1", "--cluster-store=x", "--slurm=jobs=2"],
            "--slurm has no effect with tcp://h:1",
        ),
        (
            ["--cluster=slurm", "--cluster-store=x"],
            "jobs is missing. cpus-per-task is missing. mem is missing.",
        ),
    ],
)
def test_contradictions_are_refused(pem: Path, words: list[str], problem: str) -> None:
    with pytest.raises(RequestError) as refused:
        read(*(word.format(pem=pem) for word in words))
    assert problem in refused.value.message


def test_resources_are_parsed() -> None:
    assert parse_resources(("gfx942=8 big=1", "gfx950=2,gfx942=1")) == {
        "gfx942": 9,
        "big": 1,
        "gfx950": 2,
    }
    for text in ("gfx942", "=1", "gfx942=0", "gfx942=x", "gfx942=-1", "program:1=1"):
        with pytest.raises(RequestError, match="--resources is invalid"):
            parse_resources((text,))


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MachineError) as missing:
        dask_module("distributed")
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
    assert (
        "--cluster has no effect without kernels. Give --kernels"
        in capsys.readouterr().err
    )
    assert run([*words, *cluster, "--kernels"]) == 0
    line = (
        "    compile on the workers of tcp://head:8786, with files in"
        f" {tmp_path / 'store'}; link here"
    )
    assert line in capsys.readouterr().out.splitlines()
    assert run([*words, "--kernels"]) == 0
    assert "workers" not in capsys.readouterr().out
