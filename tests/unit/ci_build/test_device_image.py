"""The device gate in a container: image by digest, mounts, variables, command, and evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from ci_build import cli
from ci_build.containers.container import Mount
from ci_build.containers.engine import Engine
from ci_build.images import engine_images as local
from ci_build.images.engine_images import ContainerImage
from ci_build.release import device_image, device_step
from ci_build.release.device_image import (
    gate_argv,
    mounts,
    require_container,
    run_in_image,
)
from ci_build.release.release_request import (
    ContainerSettings,
    DeviceRun,
    DeviceStep,
    SigningKey,
)
from ci_build.rocm.rocm_request import RocmStorage
from core.errors import BusyError, CiBuildError, InputError, MachineError, RequestError
from core.http.client import Client
from core.process import HostRunner, ProcessResult
from core.report import Reporter
from promotion.evidence.signing import Signer
from promotion.gates.device.device_request import DeviceRequest
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import StagedSet
from tests.support.memory_bucket import MemoryBucket
from tests.support.signing_key import signing_key

DIGEST = "sha256:" + "a" * 64
IMAGE = f"example.org/runner@{DIGEST}"
ID = "sha256:" + "b" * 64
ENGINE = Engine(program="docker", version="27.1")
REPORTER = Reporter(terminal=False)


def gate_run(folder: Path, **changes: Any) -> DeviceRun:
    """Return a run on a staged set in a bucket below a folder."""
    staged = StagedSet(index="multi-arch", digest="d" * 64)
    bucket = DirBucket(folder / "bucket")
    (bucket.root / staged.root).mkdir(parents=True, exist_ok=True)
    values: dict[str, Any] = {
        "request": DeviceRequest(platform="cpu", image=IMAGE),
        "step": DeviceStep(
            environ={},
            container=ContainerSettings(
                engine="",
                args=(),
                cache=folder / "cache",
                variables={"AWS_SECRET_ACCESS_KEY": "hush"},
            ),
            rocm=RocmStorage(cache=folder, limit=0),
            connect=Client,
        ),
        "staged": staged,
        "bucket": bucket,
        "bucket_name": str(folder / "bucket"),
        "channel": "local",
        "key": SigningKey(file=None, text="key text", origin="CI_BUILD_SIGNING_KEY"),
    }
    return DeviceRun(**{**values, **changes})


def test_gate_argv_passes_every_option(tmp_path: Path) -> None:
    request = DeviceRequest(
        platform="rocm",
        family="gfx94X-dcgpu",
        jax_tests="jax@" + "0" * 40,
        size="small",
        tests=("a", "b"),
        python="3.12",
        also=Path("also.txt"),
        rocm=Path("/opt/rocm"),
        devices=2,
        import_limit=9,
        rocm_of_set=True,
        image=IMAGE,
        wheelhouse=Path("wheelhouse"),
    )
    assert all(
        getattr(request, option.name) != option.default
        for option in fields(request)
        if option.name != "inside"
    )
    words = gate_argv(gate_run(tmp_path, request=request, redo=True), "docker 27.1")
    here = Path.cwd()
    assert words[:5] == (
        "python3",
        "/ci_build/build/ci_build",
        "gate",
        "device",
        "multi-arch/" + "d" * 64,
    )
    assert {*words[5:]} == {
        f"--bucket={tmp_path / 'bucket'}",
        "--channel=local",
        "--json",
        "--redo",
        "--platform=rocm",
        "--family=gfx94X-dcgpu",
        f"--jax-tests={here / 'jax'}@{'0' * 40}",
        "--size=small",
        "--test=a",
        "--test=b",
        "--python=3.12",
        f"--also={here / 'also.txt'}",
        "--rocm=/opt/rocm",
        "--devices=2",
        "--import-limit=9",
        f"--image={IMAGE}",
        "--inside=docker 27.1",
        f"--wheelhouse={here / 'wheelhouse'}",
    }


def test_mounts_keep_wheels_read_only(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").touch()
    (tmp_path / "w").mkdir()
    request = DeviceRequest(
        platform="cpu",
        image=IMAGE,
        jax_tests=str(tmp_path / "jax"),
        wheelhouse=tmp_path / "wheelhouse",
    )
    pip = {
        "cert": str(tmp_path / "ca.pem"),
        "extra-index-url": f"https://index.invalid/simple file://{tmp_path}/w/simple",
    }
    made = [*mounts(gate_run(tmp_path, request=request), tmp_path / "cache", pip)]
    staged = tmp_path / "bucket/v2-staging/multi-arch" / ("d" * 64)
    writable = {mount.target: mount.writable for mount in made}
    assert writable == {
        "/ci_build": False,
        "/cache": True,
        str(tmp_path / "bucket"): True,
        str(staged): False,
        str(staged / "evidence"): True,
        str(tmp_path / "jax"): False,
        str(tmp_path / "wheelhouse"): False,
        str(tmp_path / "w"): False,
        str(tmp_path / "ca.pem"): False,
    }
    assert Mount(staged, str(staged)) in made


class Recorder(HostRunner):
    """A runner that starts nothing.

    It keeps the command of a container, and the variables of the engine.
    """

    def __init__(self) -> None:
        super().__init__({})
        self.argv: list[str] = []
        self.variables: Mapping[str, str] = {}
        self.returncode = 0

    def run(self, argv: Sequence[str], **more: Any) -> ProcessResult:
        if "pip" in argv:
            return ProcessResult(
                stdout="global.index-url='https://user:word@index.invalid/simple'\n",
                returncode=0,
            )
        if "--rm" in argv:
            self.argv = [*argv]
            self.variables = more["env"]
        return ProcessResult(returncode=self.returncode, stdout="[]")


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    image = ContainerImage(name=IMAGE, id=ID, digests=())
    monkeypatch.setattr(device_image, "find_engine", lambda *_: ENGINE)
    monkeypatch.setattr(device_image, "find_image", lambda *_: image)
    return Recorder()


def option_values(argv: Sequence[str], name: str) -> list[str]:
    return [argv[at + 1] for at, word in enumerate(argv) if word == name]


def test_run_in_image_hides_secrets(tmp_path: Path, recorder: Recorder) -> None:
    run_in_image(gate_run(tmp_path), REPORTER, recorder, lambda _: None)
    # The image is named by its id, so that no other image of this name can run.
    assert ID in recorder.argv
    assert option_values(recorder.argv, "--network") == ["host"]
    assert "--read-only" in recorder.argv
    assert not [
        word
        for word, secret in product(recorder.argv, ("hush", "user:word", "key text"))
        if secret in word
    ]
    assert recorder.variables == {
        "AWS_SECRET_ACCESS_KEY": "hush",
        "PIP_INDEX_URL": "https://user:word@index.invalid/simple",
        "CI_BUILD_SIGNING_KEY": "key text",
    }
    assert {*recorder.variables} <= {*option_values(recorder.argv, "--env")}
    assert option_values(recorder.argv, "--device") == []
    # No temporary folder is left.
    assert [*(tmp_path / "cache/images/gates" / ("a" * 16)).iterdir()] == []


def test_run_in_image_gives_gpus_of_the_machine(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        device_image, "find_gpus", lambda: (("/dev/kfd", "/dev/dri"), ("44", "109"))
    )
    request = DeviceRequest(platform="rocm", family="gfx94X-dcgpu", image=IMAGE)
    run_in_image(
        gate_run(tmp_path, request=request), REPORTER, recorder, lambda _: None
    )
    assert option_values(recorder.argv, "--device") == ["/dev/kfd", "/dev/dri"]
    assert option_values(recorder.argv, "--group-add") == ["44", "109"]
    assert option_values(recorder.argv, "--shm-size") == ["16g"]


def test_image_that_cannot_start_the_gate_is_refused(
    tmp_path: Path, recorder: Recorder
) -> None:
    recorder.returncode = 127
    with pytest.raises(MachineError, match="cannot start in"):
        run_in_image(gate_run(tmp_path), REPORTER, recorder, lambda _: None)


def test_pulled_image_with_another_digest_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = ContainerImage(name=IMAGE, id=ID, digests=("a@sha256:" + "c" * 64,))
    for name in ("find", "pull"):
        monkeypatch.setattr(local, name, lambda *_: other)
    with pytest.raises(InputError, match="has another digest"):
        device_image.find_image(ENGINE, HostRunner({}), IMAGE, REPORTER)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (BusyError.exit_code, BusyError),
        (99, MachineError),
    ],
)
def test_image_gate_without_evidence_ends_with_its_error(
    code: int,
    error: type[CiBuildError],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_image, "run_in_image", lambda *_: (code, ()))
    signer = Signer(signing_key().encode(), origin="tests")
    with pytest.raises(error, match="no evidence"):
        device_step.run_gate(gate_run(tmp_path), REPORTER, HostRunner({}), signer)


def test_run_in_image_refuses_remote_bucket_without_network(tmp_path: Path) -> None:
    run = gate_run(tmp_path, bucket_name="s3://wheels", bucket=MemoryBucket())
    container = replace(run.step.container, args=("--network=none",))
    offline = replace(run, step=replace(run.step, container=container))
    with pytest.raises(RequestError, match="contradicts the bucket s3://wheels"):
        run_in_image(offline, REPORTER, HostRunner({}), lambda _: None)


def test_require_container_refuses_claim_outside_a_container(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claim = DeviceRequest(platform="cpu", image=IMAGE, inside="docker 27.1")
    require_container(DeviceRequest(platform="cpu"))
    for checkout in (Path.cwd(), Path("/ci_build")):
        with pytest.raises(
            RequestError, match="--inside needs --image and a container"
        ):
            require_container(claim, checkout)
    monkeypatch.setattr(Path, "is_mount", lambda path: str(path) == "/ci_build")
    require_container(claim, Path("/ci_build"))
    with pytest.raises(RequestError, match="--inside needs --image"):
        require_container(replace(claim, image=""), Path("/ci_build"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--image=example.org/runner:latest"],
            "--image has no digest: example.org/runner:latest.",
        ),
        (
            ["--container-args=--network=none"],
            "--container-args has no effect without --image.",
        ),
        ([f"--image={IMAGE}", "--container-args=much"], "'much'"),
    ],
)
def test_gate_device_refuses_wrong_image_options(
    words: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["gate", "device", "multi-arch/1", "--platform=cpu", *words]) == 2
    assert said in capsys.readouterr().err
