"""Dry runs of the image commands.

All images with their build commands, and the commands run in them.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from ci_build import cli
from ci_build.cli.commands.image_run import SELFTEST
from ci_build.cli.options.environment import connection
from ci_build.images import image_builder as builder
from ci_build.images.image_builder import ImageBuilder
from ci_build.images.image_contents import rocm_packages
from ci_build.images.image_pins import load_pins
from ci_build.wheelset.set_files import write_set
from core.errors import InputError, RequestError, WheelSetError
from core.pip import Resolved
from core.process import ProcessResult
from tests.support.made_kernels import clean_kernels
from tests.support.wheel_sets import make_set, make_wheels, set_wheel

ROCM = (
    "--therock-path=https://host.invalid/therock-dist-linux-gfx94X-dcgpu-7.2.0.tar.gz"
)
JAX = "jax-0.10.2-py3-none-any.whl"


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    """Make a set with kernels whose jax is not available."""
    folder = tmp_path / "dist"
    wheels = [
        *make_wheels(folder, pythons=("3.12",)),
        set_wheel(clean_kernels(), folder),
    ]
    jax = Resolved(
        name="jax",
        version="0.10.2",
        filename=JAX,
        url=f"https://host.invalid/{JAX}",
        sha256="1" * 64,
        requires_python=">=3.11",
    )
    write_set(
        folder, make_set(wheels, python_versions=("3.12",), files={}), {"3.12": [jax]}
    )
    return folder


@pytest.fixture(autouse=True)
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test if an engine is looked for."""
    monkeypatch.setattr(
        builder,
        "find_engine",
        lambda *_: pytest.fail("a container engine was looked for"),
    )
    for name in ("REGISTRY", "MIRROR"):
        monkeypatch.delenv(f"CI_BUILD_IMAGE_{name}", raising=False)


def planned(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """Return the output of a dry run, or the message if it fails.

    Long commands are joined to one line.
    """
    assert cli.run([*words, "--dry-run"]) == code
    done = capsys.readouterr()
    assert (done.out == "") == (code != 0)
    return re.sub(r" \\\n\s+", " ", done.err if code else done.out)


def builds(told: str) -> list[str]:
    """Return the names of the images that a plan builds, in order."""
    return re.findall(r"\$ docker build --file Dockerfile --tag (\S+)", told)


def commands_of(told: str, *words: str) -> list[str]:
    """Return the docker commands of a plan that begin with these words, without them."""
    start = f"$ docker {' '.join(words)} "
    return [
        line.strip().removeprefix(start)
        for line in told.splitlines()
        if line.strip().startswith(start)
    ]


def test_runtime_dry_run_shows_images_and_bases(
    dist: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = planned(capsys, "images", "build", "runtime", str(dist), "-f", "ubu24")
    assert builds(told) == ["jax-ubu24.rocm720:DIGEST"]
    assert "look on this machine for the image jax-base-ubu24.rocm720\n" in told
    assert f"wheels/{JAX} ({'1' * 16})" in told
    assert "--label com.amdgpu.jax_version=0.10.2" in told
    told = planned(
        capsys,
        "images",
        "build",
        "runtime",
        str(dist),
        "-f",
        "ubu24",
        "--image-registry=a.b/c",
    )
    assert commands_of(told, "pull") == ["a.b/c/jax-base-ubu24.rocm720"]
    told = planned(
        capsys,
        "images",
        "build",
        "runtime",
        str(dist),
        ROCM,
        "--push",
        "--image-registry=127.0.0.1:1",
        "--no-cache",
    )
    names = [name.partition(":")[0] for name in builds(told)]
    both = ("ubu22", "ubu24")
    expected: list[str] = []
    for name in both:
        expected += [
            f"jax-base-{name}",
            f"jax-base-{name}.rocm720",
            f"jax-{name}.rocm720",
        ]
    assert sorted(names) == sorted(expected)
    ubuntus = {pin.reference for pin in load_pins().pins if pin.name.startswith("ubu")}
    assert set(commands_of(told, "pull")) == ubuntus
    assert {f"127.0.0.1:1/jax-{name}.rocm720" for name in both} <= set(
        commands_of(told, "push")
    )
    words = ("images", "build", "runtime", str(dist))
    assert "--base-docker has no effect" in planned(
        capsys, *words, "--base-docker=mine:1", code=2
    )
    assert "has no wheels for Python 3.13" in planned(
        capsys, *words, "--python-versions=3.13", code=2
    )
    assert "but --rocm-version is 7.1.0" in planned(
        capsys, *words, "--rocm-version=7.1.0", code=2
    )
    test = ("images", "test", str(dist))
    assert "but --jax-version is 0.9.0" in planned(
        capsys, *test, "--jax-version=0.9.0", code=2
    )
    next(dist.glob("*.whl")).write_bytes(b"x")
    assert "has files that differ from its set" in planned(
        capsys, *words, code=WheelSetError.exit_code
    )


def test_pip_packages_dry_run_shows_download_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    index = "--therock-index-url=https://host.invalid/simple"
    told = planned(
        capsys,
        "images",
        "build",
        "manylinux",
        "--pip-packages",
        index,
        "--therock-version=7.2.0",
        "-t",
        "mine:1",
    )
    assert [name.partition(":")[0] for name in builds(told)] == [
        "jax-manylinux_2_28",
        "jax-manylinux_2_28-therock-7.2.0",
    ]
    (download,) = commands_of(told, "run")
    assert (
        "pip wheel --no-input --pre --index-url=https://host.invalid/simple --wheel-dir=/out"
        in download
    )
    assert download.endswith("device-gfx1201]==7.2.0'")
    assert (
        commands_of(told, "tag")[-1] == "jax-manylinux_2_28-therock-7.2.0:DIGEST mine:1"
    )


def test_base_and_manylinux_dry_runs_show_rocm_layer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = planned(
        capsys, "images", "build", "base", ROCM, "-f", "ubu24", "--install-llvm"
    )
    first, second = builds(told)
    assert (first.partition(":")[0], second) == (
        "jax-dev-ubu24",
        "jax-dev-ubu24.rocm720:DIGEST",
    )
    assert f"build {second} on {first}, unless it exists" in told
    job = (
        "--rocm-build-job=nightly",
        "--rocm-build-url=https://host.invalid/{job}/" + ROCM.rpartition("/")[2],
    )
    told = planned(capsys, "images", "build", "base", *job, "-f", "ubu24")
    assert builds(told)[1] == "jax-base-ubu24.rocm720:DIGEST"
    told = planned(
        capsys, "images", "build", "manylinux", ROCM, "--builder-image=mine:1"
    )
    assert builds(told) == ["jax-manylinux_2_28-therock-7.2.0:DIGEST"]
    assert "DIGEST on docker.io/library/mine:1, unless it exists" in told
    words = ("images", "build", "manylinux", "--builder-image=mine:1", "--no-cache")
    told = planned(capsys, *words, code=RequestError.exit_code)
    assert "--no-cache has no effect with --builder-image" in told


def test_manylinux_dry_run_pulls_pin_from_its_registry_or_mirror(
    capsys: pytest.CaptureFixture[str],
) -> None:
    digest = load_pins().get("base", "manylinux_2_28", platform.machine()).digest
    base = f"manylinux_2_28_{platform.machine()}@{digest}"
    told = planned(capsys, "images", "build", "manylinux")
    assert commands_of(told, "pull") == [f"quay.io/pypa/{base}"]
    mirrors = (
        "--image-mirror=quay.io=127.0.0.1:5000/quay",
        "--image-mirror=docker.io=d.example",
    )
    told = planned(capsys, "images", "build", "manylinux", *mirrors)
    assert commands_of(told, "pull") == [f"127.0.0.1:5000/quay/pypa/{base}"]
    # The mirror is no part of the image's content.
    assert builds(told) == builds(planned(capsys, "images", "build", "manylinux"))


def test_run_dry_run_needs_no_engine(capsys: pytest.CaptureFixture[str]) -> None:
    told = planned(
        capsys, "images", "run", "mine:1", "--no-gpu", "--container-memory=8g"
    )
    assert commands_of(told, "pull") == ["docker.io/library/mine:1"]
    (line,) = commands_of(told, "run")
    assert "--memory 8g" in line
    assert line.endswith(
        f"--entrypoint /opt/python/PYTHON/bin/python3 mine:1 {SELFTEST} --no-gpu"
    )
    told = planned(
        capsys,
        "images",
        "run",
        "a.b/mine:1",
        "--no-gpu",
        "--test-cmd=true",
        "--image-mirror=a.b=c.d/e",
    )
    assert commands_of(told, "pull") == ["c.d/e/mine:1"]
    assert commands_of(told, "run")[0].endswith("--entrypoint bash a.b/mine:1 -c true")


def test_proxy_password_is_not_in_process_lists(
    image_builder: ImageBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = list[str]()
    variables = list[str]()

    def record(argv: Sequence[str], **_: object) -> ProcessResult:
        commands.append(" ".join(argv))
        if "--env-file" in argv:
            variables.append(Path(argv[argv.index("--env-file") + 1]).read_text())
        return ProcessResult(returncode=1, stdout="", stderr="no\n")

    monkeypatch.setenv("https_proxy", "http://user:secret@host.invalid:3128")
    monkeypatch.setattr(image_builder.host, "run", record)
    with pytest.raises(InputError, match="does not provide rocm"):
        rocm_packages(
            image_builder,
            "image",
            "python3",
            "https://host.invalid/simple",
            "7.2.0",
            connection(),
        )
    assert any(" pip wheel " in command for command in commands)
    assert not any("secret" in command for command in commands)
    assert variables == ["https_proxy=http://user:secret@host.invalid:3128\n"]
