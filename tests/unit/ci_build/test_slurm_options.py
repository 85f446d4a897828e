"""Options and failures of the jobs of `--cluster slurm`."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from ci_build.cli.options.environment import SIGNING_KEY
from ci_build.cli.options.slurm_options import slurm_request
from ci_build.cluster.cluster_request import ClusterRequest, SlurmRequest
from ci_build.cluster.slurm import SlurmJobs, _check_script, slurm_cluster, worker_words
from core.errors import InputError, MachineError, RequestError
from core.process import ProcessResult
from tests.support.silent import Silent

WORDS = ("jobs=2", "cpus-per-task=8", "mem=24G")


def test_slurm_options_of_command_line_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "slurm.toml"
    file.write_text(
        'jobs = 4\naccount = "jax"\ncpus-per-task = 8\nmem = "24G"\nprologue = ["module'
        ' load rocm"]\n'
    )
    request = slurm_request(
        str(file), ("jobs=2", "partition=mi300x", "exclusive"), str(tmp_path)
    )
    assert (request.jobs, request.cpus, request.memory_mb, request.prologue) == (
        2,
        8,
        24 << 10,
        ("module load rocm",),
    )
    expected = {
        "account": "jax",
        "cpus-per-task": "8",
        "mem": "24G",
        "partition": "mi300x",
        "exclusive": "",
    }
    assert request.directives == expected
    assert request.shared == tmp_path


@pytest.mark.parametrize(
    ("text", "megabytes"), [("500", 500), ("2048K", 2), ("96G", 96 << 10)]
)
def test_slurm_memory_has_units_of_sbatch(
    text: str, megabytes: int, tmp_path: Path
) -> None:
    assert (
        slurm_request("", (*WORDS, f"mem={text}"), str(tmp_path)).memory_mb == megabytes
    )


def test_slurm_gpus_with_target_as_type_are_resources(tmp_path: Path) -> None:
    assert slurm_request(
        "", (*WORDS, "gres=gpu:gfx942:8"), str(tmp_path)
    ).resources == {"gfx942": 8}
    other = (*WORDS, "gres=gpu:mi300x:8", "resources=gfx942=8")
    request = slurm_request("", other, str(tmp_path))
    assert (request.resources, request.directives["gres"]) == (
        {"gfx942": 8},
        "gpu:mi300x:8",
    )
    with pytest.raises(RequestError, match="add resources, such as gfx942=8"):
        slurm_request("", (*WORDS, "gres=gpu:mi300x:8"), str(tmp_path))


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (WORDS[:1], "cpus-per-task is missing. mem is missing."),
        ((*WORDS, "--account=x"), "'--account' is no option of sbatch."),
        ((*WORDS, "account=a\n#SBATCH -x"), "account is invalid: 'a\\n#SBATCH -x'."),
        (
            (*WORDS, "cache-dir=$(id)"),
            "cache-dir is invalid: '$(id)', not an absolute path.",
        ),
        ((*WORDS, "jobs=0"), "not a positive number"),
        ((*WORDS, "listen=a:b"), "not HOST or HOST:PORT"),
        ((*WORDS, "mem=96GB"), "not a size"),
        ((*WORDS, "resources=gfx942"), "not resources"),
        ((*WORDS, "prologue=a\nb"), "not lines of a script"),
    ],
)
def test_slurm_option_is_refused(
    words: tuple[str, ...], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(RequestError) as caught:
        slurm_request("", words, str(tmp_path))
    assert problem in caught.value.message


def test_slurm_needs_shared_folder_beside_bucket() -> None:
    with pytest.raises(RequestError, match="shared is missing"):
        slurm_request("", WORDS, "s3://bucket")
    assert slurm_request(
        "", (*WORDS, "shared=/home/me/jobs"), "s3://bucket"
    ).shared == Path("/home/me/jobs")


def test_slurm_file_that_is_no_toml_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "slurm.toml"
    file.write_text("jobs = ")
    with pytest.raises(InputError, match=f"{file} cannot be read"):
        slurm_request(str(file), (), str(tmp_path))
    with pytest.raises(InputError, match="No such file"):
        slurm_request(str(tmp_path / "missing"), (), str(tmp_path))


def test_slurm_jobs_do_not_inherit_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SIGNING_KEY, "secret")
    request = slurm_request("", WORDS, str(tmp_path))
    assert SIGNING_KEY in request.hidden
    assert SIGNING_KEY not in request.environment


def test_slurm_worker_gets_what_its_job_has() -> None:
    request = SlurmRequest(
        jobs=2, cpus=8, memory_mb=24000, shared=Path("/s"), resources={"gfx942": 4.0}
    )
    tls = {"ca_file": "/s/ca", "cert": "/s/cert", "key": "/s/key", "ciphers": ""}
    words = worker_words(request, "tls://head:1", "w1", tls)
    assert words[:5] == ["-m", "ci_build.cli", "cluster", "worker", "tls://head:1"]
    assert {
        "--name=w1",
        "--jobs=8",
        "--memory=24000",
        "--resources=gfx942=4",
        "--cluster-key=/s/key",
    } < set(words)


def test_slurm_cluster_needs_sbatch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    slurm = SlurmRequest(jobs=1, cpus=1, memory_mb=1, shared=tmp_path)
    request = ClusterRequest(address="slurm", store="s", slurm=slurm)
    with (
        pytest.raises(MachineError, match="needs sbatch"),
        slurm_cluster(request, Silent()),
    ):
        pass


def test_slurm_refusal_is_reported_with_its_reason() -> None:
    refused = ProcessResult(returncode=1, stderr="sbatch: error: Invalid partition\n")
    with pytest.raises(RequestError, match="cluster slurm: Invalid partition"):
        _check_script("", Mock(run=lambda *_, **__: refused))


def test_slurm_run_ends_without_jobs(tmp_path: Path) -> None:
    job = Mock(job_id=None, refusal="no account")
    cluster = Mock(workers={"a": job}, scheduler=Mock(workers={}))
    runner = Mock(run=lambda *_, **__: ProcessResult(returncode=0))
    jobs = SlurmJobs(
        cluster=cluster,
        name="n",
        wanted=1,
        logs=tmp_path,
        runner=runner,
        progress=Silent(),
    )
    with pytest.raises(MachineError, match="ended or were refused"):
        jobs.expected()
