"""Dry runs of the image commands: all images with their build commands, and the commands run in them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from ci_build import cli
from ci_build.build.set_files import write_set
from ci_build.cli.commands.image_run import SELFTEST
from ci_build.cli.options.environment import connection
from ci_build.images.builder import ImageBuilder
from ci_build.images.contents import rocm_packages
from core.errors import InputError, RequestError
from core.pip import Resolved
from core.process import HostRunner, ProcessResult
from tests.support.wheel_sets import make_set, make_wheels

ROCM = "--therock-path=https://host.invalid/therock-dist-linux-gfx94X-dcgpu-7.2.0.tar.gz"
JAX = "jax-0.10.2-py3-none-any.whl"


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    """Make a set whose jax is not available."""
    folder = tmp_path / "dist"
    wheels = make_wheels(folder, pythons=("3.12",))
    jax = Resolved(
        name="jax", version="0.10.2", filename=JAX, url=f"https://host.invalid/{JAX}", sha256="1" * 64,
        requires_python=">=3.11",
    )  # fmt: skip
    write_set(folder, make_set(wheels, python_versions=("3.12",), files={}), {"3.12": [jax]})
    return folder


def planned(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> tuple[str, str]:
    """Return the output and the messages of a dry run."""
    assert cli.run([*words, "--dry-run"]) == code
    done = capsys.readouterr()
    return done.out, done.err


def builds(told: str) -> list[str]:
    """Return the names of the images that a plan builds, in order."""
    return re.findall(r"\$ docker build --file Dockerfile --tag (\S+)", told)


def test_runtime_dry_run_shows_images_and_bases(dist: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, told = planned(capsys, "build_dockers", str(dist), "-f", "ubu24")
    assert out == ""
    assert builds(told) == ["jax-ubu24.rocm720:CONTENT"]
    assert "jax-ubu24.rocm720:CONTENT on jax-base-ubu24.rocm720@CONTENT, with" in told
    assert f"wheels/{JAX} ({'1' * 16})" in told
    assert "--label com.amdgpu.jax_version=0.10.2" in told
    _, told = planned(capsys, "build_dockers", str(dist), ROCM, "--push", "--image-registry=127.0.0.1:1", "--no-cache")
    names = [name.partition(":")[0] for name in builds(told)]
    both = ("ubu22", "ubu24")
    assert sorted(names) == sorted(f"jax-{what}" for name in both for what in (
        f"base-{name}", f"base-{name}.rocm720", f"{name}.rocm720"))  # fmt: skip
    assert [name.startswith("jax-ubu") for name in names] == [False] * 4 + [True] * 2
    assert "would download https://host.invalid/therock-dist" in told
    assert "would push the built images to 127.0.0.1:1" in told


def test_test_dry_run_shows_commands_in_images(dist: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("test_docker", str(dist), "-f", "ubu24")
    out, told = planned(capsys, *words, "--no-gpu", "--container-memory=8g")
    assert builds(told) == ["jax-ubu24.rocm720:CONTENT"]
    (line,) = out.splitlines()
    assert line.startswith("docker run --rm --init --pull never ")
    assert "--memory 8g" in line
    assert line.endswith(f"jax-ubu24.rocm720 {SELFTEST} --no-gpu")
    out, told = planned(capsys, *words, "--docker-build-only")
    assert (out, builds(told)) == ("", ["jax-ubu24.rocm720:CONTENT"])


def test_wrong_run_option_is_refused_before_build(dist: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("test_docker", str(dist), "--no-gpu")
    for more, error in (("--env-file=absent", InputError), ("--container-memory=much", RequestError)):
        assert cli.run([*words, more]) == error.exit_code
        told = capsys.readouterr().err
        assert more.partition("=")[0] in told
        assert "contents of" not in told


def test_pip_packages_dry_run_shows_download_command(capsys: pytest.CaptureFixture[str]) -> None:
    index = "--therock-index-url=https://host.invalid/simple"
    _, told = planned(capsys, "build_manylinux_therock_dockers", index, "--therock-version=7.2.0", "-t", "mine:1")
    assert [name.partition(":")[0] for name in builds(told)] == [
        "jax-manylinux_2_28",
        "jax-manylinux_2_28-therock-7.2.0",
    ]
    assert "pip wheel --no-input --pre --index-url=https://host.invalid/simple --wheel-dir=/out" in told
    assert "'rocm[libraries,devel]==7.2.0'" in told
    assert "would tag the image mine:1" in told
    wrong = "--therock-index-url=folder"
    _, told = planned(capsys, "build_base_therock_dockers", wrong, "-f", "ubu24", code=RequestError.exit_code)
    assert "--therock-index-url 'folder' is invalid" in told


def test_base_and_manylinux_dry_runs_show_rocm_layer(capsys: pytest.CaptureFixture[str]) -> None:
    _, told = planned(capsys, "build_base_dockers", ROCM, "-f", "ubu24", "--install-llvm")
    first, second = builds(told)
    assert (first.partition(":")[0], second) == ("jax-dev-ubu24", "jax-dev-ubu24.rocm720:CONTENT")
    assert f"{second} on {first}, with" in told
    assert "    rocm (CONTENT)" in told
    job = ("--rocm-build-job=nightly", "--rocm-build-url=https://host.invalid/{job}/" + ROCM.rpartition("/")[2])
    _, told = planned(capsys, "build_base_dockers", *job, "-f", "ubu24")
    assert builds(told)[1] == "jax-base-ubu24.rocm720:CONTENT"
    assert "downloads/python-3.13 (" in told
    _, told = planned(capsys, "build_manylinux_dockers", ROCM, "--builder-image=mine:1")
    assert builds(told) == ["jax-manylinux_2_28-therock-7.2.0:CONTENT"]
    assert "on mine:1@CONTENT, with" in told
    _, told = planned(capsys, "build_manylinux_dockers", "--builder-image=mine:1")
    assert (told, builds(told)) == ("would look in a registry for mine:1, if it is missing\n", [])
    words = ("build_manylinux_dockers", "--builder-image=mine:1", "--no-cache")
    _, told = planned(capsys, *words, code=RequestError.exit_code)
    assert "--no-cache has no effect with --builder-image" in told


class FakeHost(HostRunner):
    """A host that records commands and the files that their variables name, and lets every command fail."""

    def __init__(self) -> None:
        super().__init__({})
        self.commands: list[str] = []
        self.variables = ""

    def run(self, argv: Sequence[str], **_: object) -> ProcessResult:
        self.commands.append(" ".join(argv))
        if "--env-file" in argv:
            self.variables += Path(argv[argv.index("--env-file") + 1]).read_text()
        return ProcessResult(returncode=1, stdout="", stderr="no\n")


def test_proxy_password_is_not_in_process_lists(image_builder: ImageBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://user:secret@host.invalid:3128")
    image_builder.host = host = FakeHost()
    with pytest.raises(InputError, match="does not provide rocm"):
        rocm_packages(image_builder, "image", "python3", "https://host.invalid/simple", "7.2.0", connection())
    assert any(" pip wheel " in command for command in host.commands)
    assert not any("secret" in command for command in host.commands)
    assert host.variables == "https_proxy=http://user:secret@host.invalid:3128\n"
