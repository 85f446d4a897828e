"""A ROCm of `--rocm-version` alone, and one before 7.9, which dnf installs in the builder image.

The options, the plan of the image, and the lock.
"""

from __future__ import annotations

import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ci_build.cli.options.request_conversion import wheel_set_request
from ci_build.cli.options.rocm_options import find_rocm
from ci_build.cli.options.settings import Settings
from ci_build.images.image_builder import ImageBuilder
from ci_build.images.image_pins import DOCKER, load_pins
from ci_build.rocm.installed import COPY_COMMAND, LIST_COMMAND, DnfRocm
from ci_build.rocm.lock import load_lock
from ci_build.rocm.rocm_request import RocmRequest, dnf_arguments
from ci_build.rocm.rocm_store import RocmStore
from ci_build.rocm.source import Rocm, obtain
from ci_build.wheelset.wheel_request import WheelSetRequest
from core.defaults import defaults
from core.errors import InputError, RequestError
from core.http.client import Client
from core.process import HostRunner, ProcessResult
from core.report import Reporter
from core.rocm_trust import ChecksumOrigin, RocmTrust
from core.targets import requested
from tests.support.made_rocm import make_rocm, rocm_request

REPORTER = Reporter(terminal=False)
SOURCE = "dnf+https://repo.radeon.com/rocm/rhel8/7.2/main"
HIP = "hip-runtime-amd-7.2.26015.70200-43.el8.x86_64"


def found(
    given: Mapping[str, Any], *, use_amd: bool = True, targets: str = "gfx942"
) -> RocmRequest | None:
    settings = Settings({"payload": "source", **given})
    return find_rocm(
        settings,
        REPORTER,
        HostRunner({}),
        Client,
        use_amd=use_amd,
        targets=requested(targets),
    )


@pytest.mark.parametrize(
    ("version", "source"),
    [
        ("7.2.0", "dnf+https://repo.radeon.com/rocm/rhel8/7.2/main"),
        ("7.2.1", "dnf+https://repo.radeon.com/rocm/rhel8/7.2.1/main"),
        ("7.10.0", "pip+https://repo.amd.com/rocm/whl/gfx94X-dcgpu/"),
        ("7.14.0", "pip+https://repo.amd.com/rocm/whl-multi-arch/"),
        ("10.1.0a20260901", "pip+https://nightly.repo.amd.com/rocm/whl-next/"),
    ],
)
def test_version_alone_names_amds_packages(
    version: str, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rocm = found({"rocm_version": version})
    assert rocm is not None
    assert str(rocm.source) == source
    assert (
        f"--rocm-version={version}: AMD's packages, {source}" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "given", [{}, {"rocm_version": "7.2.0rc1"}, {"rocm_version": "6.4.0"}]
)
def test_other_versions_name_no_packages(given: Mapping[str, Any]) -> None:
    assert found(given) is None
    assert found({"rocm_version": "7.2.0"}, use_amd=False) is None


def test_index_of_family_refuses_targets_of_several() -> None:
    with pytest.raises(RequestError) as refused:
        found({"rocm_version": "7.9.0"}, targets="gfx942,gfx1151")
    assert "targets of one family" in refused.value.hint


@pytest.mark.parametrize(
    "given", [{"therock_sha256": "0" * 64}, {"rocm_manifest": "x"}]
)
def test_options_of_other_sources_are_refused(given: Mapping[str, Any]) -> None:
    with pytest.raises(RequestError, match=r"no effect|a tarball only"):
        found({"rocm_version": "7.2.0", **given})


def request(tmp_path: Path, given: Mapping[str, Any]) -> WheelSetRequest:
    folders = {"out": str(tmp_path / "dist"), "rocm_lock": str(tmp_path / "rocm.lock")}
    settings = Settings(
        {"payload": "source", "rocm_version": "7.2.0", **folders, **given}
    )
    return wheel_set_request(settings, REPORTER, HostRunner({}), Client)


@pytest.mark.parametrize("given", [{"host": True}, {"builder_image": "mine:1"}])
def test_build_without_new_builder_image_is_refused(
    given: Mapping[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(RequestError) as refused:
        request(tmp_path, given)
    assert "--therock-path=/opt/rocm" in refused.value.hint


def test_builder_image_installs_signed_packages(tmp_path: Path) -> None:
    images = ImageBuilder(
        pins=load_pins(),
        cache=tmp_path,
        host=HostRunner({}),
        progress=REPORTER,
        connect=Client,
        dry_run=True,
        rocm=dnf_arguments(
            rocm_request(SOURCE.replace("7.2", "7.2.1"), version="7.2.1")
        ),
    )
    tools, rocm = images.builds()
    assert rocm.base == tools.tag
    assert rocm.network == "host"
    assert (
        rocm.arguments["REPOSITORY"] == "https://repo.radeon.com/rocm/rhel8/7.2.1/main"
    )
    graphics = [
        url.split("/graphics/")[1] for url in rocm.arguments["GRAPHICS"].split()
    ]
    assert graphics == ["7.2.1/rhel/8/main/x86_64/", "7.2/rhel/8/main/x86_64/"]
    assert rocm.arguments["FINGERPRINT"] == defaults()["rocm_repository"]["fingerprint"]
    assert "gpgcheck=1" in (DOCKER / rocm.dockerfile).read_text()


class Image:
    """Stand-in for a container of the image."""

    def __init__(
        self,
        root: Path,
        folder: Path,
        packages: Mapping[str, str],
    ) -> None:
        self.root = root
        self.folder = folder
        self.packages = packages
        self.copies = 0

    def run(self, argv: Sequence[str], **_: object) -> ProcessResult:
        if argv == LIST_COMMAND:
            lines = [f"{name} {digest}" for name, digest in self.packages.items()]
            return ProcessResult(returncode=0, stdout="\n".join(lines))
        assert argv == COPY_COMMAND
        self.copies += 1
        with tarfile.open(self.folder / "rocm.tar", "w") as tar:
            tar.add(self.root, ".")
        return ProcessResult(returncode=0)


@pytest.fixture
def image(tmp_path: Path) -> Image:
    (tmp_path / "copies").mkdir()
    return Image(
        make_rocm(tmp_path / "made", told="7.2.0-43"),
        tmp_path / "copies",
        {HIP: "1" * 64},
    )


def get(tmp_path: Path, image: Image | None, *, locked: bool = False) -> Rocm:
    source = rocm_request(
        SOURCE, version="7.2.0", lock=tmp_path / "rocm.lock", locked=locked
    )
    store = RocmStore(tmp_path / "store", progress=REPORTER)
    installed = DnfRocm(inside=image, folder=image.folder) if image else None
    return obtain(
        source,
        store,
        Client(),
        progress=REPORTER,
        runner=HostRunner({}),
        installed=installed,
    )


def test_installed_rocm_is_copied_once_and_locked(tmp_path: Path, image: Image) -> None:
    rocm = get(tmp_path, image)
    assert (rocm.root / "lib/libamdhip64.so.7").resolve().is_file()
    assert rocm.trust == RocmTrust(checksum=ChecksumOrigin.SIGNATURE, transport="https")
    lock = load_lock(tmp_path / "rocm.lock")
    assert lock is not None
    assert (lock.source, lock.version, lock.packages) == (
        SOURCE,
        "7.2.0",
        {HIP: "1" * 64},
    )
    assert get(tmp_path, image, locked=True).root == rocm.root
    assert image.copies == 1
    # `rocm --verify` has no image.
    assert get(tmp_path, None, locked=True).root == rocm.root


def test_published_wheels_refuse_lock_of_installed_rocm(
    tmp_path: Path, image: Image
) -> None:
    get(tmp_path, image)
    with pytest.raises(RequestError, match="that dnf installed"):
        request(tmp_path, {"payload": "published", "locked": True})


def test_locked_rocm_refuses_other_packages(tmp_path: Path, image: Image) -> None:
    get(tmp_path, image)
    image.packages = {HIP: "2" * 64}
    with pytest.raises(RequestError, match="differs from"):
        get(tmp_path, image, locked=True)


def test_rocm_without_image_and_copy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError) as refused:
        get(tmp_path, None)
    assert "--rocm-version=7.2.0" in refused.value.hint


def test_package_without_digest_is_refused(tmp_path: Path, image: Image) -> None:
    image.packages = {HIP: "(none)"}
    with pytest.raises(InputError, match="no SHA-256"):
        get(tmp_path, image)
