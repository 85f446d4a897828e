"""Commands refuse wrong options before they look for a container engine."""

from __future__ import annotations

import pytest

import core.http.client  # noqa: F401 - urllib3 binds a socket when it is imported
from ci_build import cli
from ci_build.containers import engine
from ci_build.images import image_builder as builder
from core.errors import RequestError

BASE = "--base-docker=mine:1"
CLUSTER = ("--cluster=tcp://a:1", "--cluster-store=x")
KERNELS = (
    "kernels",
    "build",
    "--targets=gfx942",
)


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test if an engine is looked for."""
    for module in (builder, engine):
        monkeypatch.setattr(
            module,
            "find_engine",
            lambda *_: pytest.fail("a container engine was looked for"),
        )


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("images", "build", BASE, "--push"), "--push needs a registry"),
        ((*KERNELS, "--jobs=0"), "--jobs"),
        ((*KERNELS, "--memory=x"), "--memory"),
        (
            ("sources", "--source-mirror=x"),
            "has no effect without --update",
        ),
        (
            ("set", "attest", "multi-arch/1", "--verify", "--dry-run"),
            "--dry-run has no effect with --verify",
        ),
        (
            ("set", "attest", "multi-arch/1", "--channel=nightly"),
            "--channel has no effect without --verify",
        ),
        (
            ("set", "reproduce", "dist", "--bucket=b"),
            "--bucket has no effect with dist",
        ),
        (("dist_wheels", "--rocm-version=7.2.0rc1"), "needs a ROCm"),
        (
            ("dist_wheels", "--payload=published", f"--out={__file__}"),
            "is not a folder",
        ),
        (
            ("gate", "structure", "set", "--family=gfx942"),
            "The gate structure does not use --family",
        ),
        (
            ("gate", "compile", "set", "--jobs=2", *CLUSTER),
            "--jobs has no effect with --cluster",
        ),
        (
            ("nightly", "i", "--bucket=b", "--steps=gates", "--redo"),
            "--redo has no effect without the step",
        ),
        (
            (
                "nightly",
                "gfx1151",
                "--steps=build",
                "--bucket=.",
                "--payload=published",
                "--targets=gfx942",
            ),
            "The targets belong to the index gfx94X-dcgpu, not gfx1151",
        ),
        (("images", "update", "absent"), "has no absent"),
        (("rocm", "absent.lock"), "absent.lock does not exist"),
        (("rocm", "--verify", "absent.lock"), "absent.lock does not exist"),
        (("ci", "matrix"), "--rocm-version is missing"),
        (("release",), "`release` requires --bucket or --local"),
        (("set", "repair", "wheels"), "--targets is missing"),
        (("ci", "keys", "file", "--out=x"), "FILE and --out exclude each other"),
        (
            ("dist_wheels", "--payload=published", "--verbose", "--quiet"),
            "--verbose and --quiet exclude each other",
        ),
    ],
)
def test_wrong_options_are_refused_without_an_engine(
    words: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run([*words]) == RequestError.exit_code
    said = capsys.readouterr()
    assert (said.out, named in said.err) == ("", True), said.err
