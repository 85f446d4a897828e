"""Every installer of the table with a small index.

Intact, broken, and beside another index with the same names.
"""

from __future__ import annotations

import os
import sys
import venv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from core.http.client import Client
from core.model import Evidence, Outcome, RocmPackage
from core.process import HostRunner, Runner
from promotion.gates.common.gate_context import Check
from promotion.gates.common.gate_runs import run_gates
from promotion.gates.common.pythons import find_pythons
from promotion.gates.common.set_requirements import write_lines
from promotion.gates.common.uv_installer import Installer, configured_uv
from promotion.gates.install import install_gate, installation
from promotion.gates.install.installer_table import (
    ALL,
    NEWEST,
    configured_installers,
    installer_versions,
    locked_installers,
)
from promotion.index.ledger_state import EntryKind
from promotion.index.operations import mark
from promotion.index.serve import IndexServer
from promotion.published_check import check_published, read_published
from promotion.stage import stage
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import StagedSet
from tests.support.machine import user_environment
from tests.support.promoting import RELEASED, go, staged_in
from tests.support.sets import rocm_packages, wheel_set
from tests.support.silent import Steps
from tests.support.wheel_sets import (
    SetWheel,
    make_set,
    make_wheels,
    ordinary_index,
    plugin,
    write_index,
    write_set,
)

OWN = "{}.{}".format(*sys.version_info[:2])
FOR_3_11 = ("pip", "uv", "pip-22.3")
"""Installers that `all` tests with Python 3.11."""
PLUGIN = "jax-rocm7-plugin"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache with the environments of all installers, from the local index."""
    cache = tmp_path_factory.mktemp("cache")
    folder = tmp_path_factory.mktemp("files")
    configured_installers(HostRunner(dict(os.environ)), folder, ALL, cache)
    return cache


class Scene:
    """A user with an ordinary package index with a small jax, and a bucket."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.bucket = DirBucket(folder / "bucket")
        self.environment = {**user_environment(), "PIP_INDEX_URL": f"{url}simple/"}

    @property
    def ordinary(self) -> Path:
        return self.folder / "ordinary" / "wheels"

    def python(self, installer: str) -> tuple[str, Path]:
        """Return the Python of this machine that a locked installer supports."""
        (version,) = next(
            item.pythons for item in locked_installers() if item.name == installer
        )
        found = find_pythons([version], HostRunner(dict(os.environ)))
        if not found:
            pytest.skip(f"needs Python {version}")
        return version, found[version]

    def staged(self, version: str) -> tuple[StagedSet, list[SetWheel]]:
        wheels = make_wheels(self.folder / "w", pythons=(version,))
        wheel_set = make_set(wheels, python_versions=(version,))
        return (
            stage(self.bucket, write_set(self.folder / "set", wheels, wheel_set)),
            wheels,
        )

    def with_extras(self, rocm: str, packages: tuple[RocmPackage, ...]) -> StagedSet:
        """Stage a set for ROCm 7.14.0 with extras that install a ROCm."""
        wheels = make_wheels(self.folder / "w", pythons=(OWN,), extras=rocm)
        wheel_set = make_set(wheels, rocm_version="7.14.0", rocm_packages=packages)
        return stage(self.bucket, write_set(self.folder / "set", wheels, wheel_set))

    def gate(
        self, staged: StagedSet, pythons: tuple[str, Path], cache: Path, *names: str
    ) -> Evidence:
        """Run the gate with these installers only; with all if none is named."""
        if not names:
            gate = install_gate.make_gate(dict([pythons]), installers=ALL, cache=cache)
        else:
            selection = NEWEST if {*names} <= {"pip", "uv"} else ALL

            def with_(runner: Runner, folder: Path) -> Sequence[Installer]:
                every = configured_installers(runner, folder, selection, cache)
                return [one for one in every if one.name in names]

            gate = install_gate.make_gate(
                dict([pythons]), installers=selection, with_=with_
            )
        context = run_gates(
            self.bucket, staged, [gate], HostRunner(self.environment), Steps()
        )
        return context[0]

    def change_page(
        self, staged: StagedSet, change: Callable[[bytes], bytes], *names: str
    ) -> None:
        for name in names or ("index.html", "index.json"):
            path = self.bucket.path(f"{staged.simple}{PLUGIN}/{name}")
            data = path.read_bytes()
            path.unlink()
            path.write_bytes(change(data))


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    (tmp_path / "ordinary").mkdir()
    with IndexServer(tmp_path / "ordinary") as server:
        scene = Scene(tmp_path, server.url)
        ordinary_index(scene.ordinary)
        write_index(scene.folder / "ordinary")
        yield scene


def failed(evidence: Evidence) -> set[str]:
    """Return the names of the installers with a failed check besides the wrong pair."""
    checks = [
        check for check in evidence.details["checks"] if check["outcome"] == "failed"
    ]
    return {
        check["installer"].partition(" ")[0]
        for check in checks
        if not check["name"].startswith("wrong pair")
    }


def wrong_hash_in_html(scene: Scene, staged: StagedSet, wheel: SetWheel) -> None:
    scene.change_page(
        staged,
        lambda data: data.replace(wheel.wheel.sha256.encode(), b"0" * 64),
        "index.html",
    )


def wrong_requires_python(scene: Scene, staged: StagedSet, _: SetWheel) -> None:
    scene.change_page(
        staged,
        lambda data: data.replace(b">=3.11", b">=3.99").replace(
            b"&gt;=3.11", b"&gt;=3.99"
        ),
    )


def changed_metadata(scene: Scene, staged: StagedSet, wheel: SetWheel) -> None:
    path = scene.bucket.path(staged.file(wheel.wheel.filename + ".metadata"))
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data + b"Requires-Dist: other\n")


Fault = Callable[[Scene, StagedSet, SetWheel], None]


@pytest.mark.parametrize(
    "fault", [wrong_hash_in_html, wrong_requires_python, changed_metadata]
)
def test_install_gate_reports_broken_index(
    scene: Scene, tmp_path: Path, fault: Fault
) -> None:
    """The newest uv, which runs by default, finds every fault of pages and core metadata."""
    staged, wheels = scene.staged(OWN)
    fault(scene, staged, next(wheel for wheel in wheels if wheel.wheel.name == PLUGIN))
    evidence = scene.gate(staged, (OWN, Path(sys.executable)), tmp_path / "cache", "uv")
    assert failed(evidence) == {"uv"}


# ROCm of an extra

BOTH = (*rocm_packages(), *rocm_packages(gpu="gfx950")[2:])
"""Wheels of ROCm for both GPUs of a set."""


@pytest.mark.parametrize(
    ("recorded", "gpus"),
    [(True, {"pip": "gfx942", "uv": "gfx950"}), (False, {"uv": "gfx950"})],
)
def test_install_gate_installs_rocm_of_first_and_last_gpu(
    scene: Scene, tmp_path: Path, recorded: bool, gpus: dict[str, str]
) -> None:
    staged = scene.with_extras("7.14.0", BOTH if recorded else ())
    own = OWN, Path(sys.executable)
    evidence = scene.gate(staged, own, tmp_path / "cache", *gpus)
    assert (evidence.outcome, evidence.findings) == (Outcome.PASSED, ())
    names = ("rocm-sdk-core", "rocm-sdk-libraries", "rocm-sdk-device-")
    for installer, gpu in gpus.items():
        (check,) = (
            one
            for one in evidence.details["checks"]
            if one["name"] == f"ROCm by {installer} for Python {OWN}"
        )
        wanted = [*names[:2], names[2] + gpu]
        assert check["rocm"] == dict.fromkeys(wanted, "7.14.0")


def test_install_gate_refuses_extra_for_another_rocm(
    scene: Scene, tmp_path: Path
) -> None:
    staged = scene.with_extras("7.13.0", BOTH)
    own = OWN, Path(sys.executable)
    evidence = scene.gate(staged, own, tmp_path / "cache", "uv")
    (finding,) = evidence.findings
    assert finding.code == "resolution-failed"
    assert "rocm-sdk-core==7.13.0" in finding.message


# Two indexes with the same names


def offer(
    scene: Scene,
    version: str,
    python: str,
    build: str = "",
) -> None:
    """Offer a plugin with other files in the ordinary index."""
    made = plugin(version, python=python)
    made.files["jax_rocm7_plugin/extra.py"] = b""
    path = made.write(scene.ordinary)
    path.rename(path.with_name(path.name.replace("-cp", f"{build}-cp", 1)))
    write_index(scene.folder / "ordinary")


@pytest.mark.network
@pytest.mark.parametrize("build", ["", "-1"])
def test_gate_reports_installers_that_take_files_of_other_index(
    scene: Scene, cache: Path, build: str
) -> None:
    """A set's pins exclude higher versions.

    Only pips prefer a higher build number of an index of equal rank.

    Without one, all installers install the set beside the other files.
    """
    python = scene.python("pip-22.3")
    staged, wheels = scene.staged(python[0])
    offer(scene, "99", python[0])
    offer(scene, wheels[0].wheel.version, python[0], build)
    evidence = scene.gate(staged, python, cache)
    assert failed(evidence) == ({"pip", "pip-22.3"} if build else set())
    assert {finding.code for finding in evidence.findings} == (
        {"resolution-elsewhere"} if build else set()
    )
    if not build:
        assert_all_installed(evidence, python[0])


def assert_all_installed(evidence: Evidence, python: str) -> None:
    """Assert that each installer installed the set with the dependency of the ordinary index."""
    assert (evidence.outcome, evidence.findings) == (Outcome.PASSED, ())
    assert evidence.counts["skipped"] == 0
    versions = installer_versions(ALL)
    checks = evidence.details["checks"]
    assert {check["installer"] for check in checks} == {
        f"{name} {versions[name]}" for name in FOR_3_11
    }
    complete = [
        check["installer"]
        for check in checks
        if check.get("installed", {}).get("small-dependency") == "1.0"
    ]
    assert {text.partition(" ")[0] for text in complete} == {*FOR_3_11}
    read_html = [check["name"] for check in checks if "HTML" in check["name"]]
    assert read_html == [
        f"resolution of HTML pages by {name} for Python {python}" for name in FOR_3_11
    ]


# Released indexes


def released(scene: Scene, python: str) -> list[list[SetWheel]]:
    """Promote two sets for one Python."""
    versions = ("0.10.2+rocm7.2.0", "0.10.2+rocm7.3.0")
    sets = [
        make_wheels(scene.folder / "w", version=version, pythons=(python,))
        for version in versions
    ]
    for wheels in sets:
        go(
            scene.bucket,
            staged_in(scene.bucket, scene.folder, wheels, python_versions=(python,)),
        )
    return sets


def check(
    scene: Scene, url: str, python: str, installers: str, cache: Path
) -> list[Check]:
    runner = HostRunner(scene.environment)
    published = read_published(url, Client())
    return list(
        check_published(
            published,
            runner,
            Steps(),
            pythons=[python],
            installers=installers,
            cache=cache,
        )
    )


@pytest.mark.network
def test_installers_skip_yanked_sets_and_normalise_names(
    scene: Scene, cache: Path
) -> None:
    """uv takes a yanked wheel only if the user pins it, so all projects are pinned."""
    version, python = scene.python("pip-22.3")
    old, new = released(scene, version)
    mark(
        scene.bucket,
        RELEASED,
        EntryKind.YANK,
        ["2"],
        reason="slow & <b>wrong</b>",
    )
    runner = HostRunner(scene.environment)
    pins = [f"{wheel.wheel.name}=={wheel.wheel.version}" for wheel in new]
    with IndexServer(scene.bucket.root) as server:
        every = configured_installers(runner, scene.folder / "files", ALL, cache)
        for installer in [one for one in every if one.name in FOR_3_11]:
            for requirements, wheels in ((["JAX_ROCm7.Plugin"], old), (pins, new)):
                wanted = write_lines(scene.folder / "wanted.txt", requirements)
                command = installer.resolve(
                    python, wanted, server.url + RELEASED.simple
                )
                chosen = installer.chosen(
                    runner.run(command.argv, env=command.env).stdout
                )
                assert chosen[PLUGIN] & {wheel.wheel.sha256 for wheel in wheels}, (
                    installer.name
                )


# Failures of the machine


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "127.0.0.1"),
        (
            {"NO_PROXY": "upper.example", "no_proxy": "lower.example"},
            "127.0.0.1,lower.example",
        ),
        ({"NO_PROXY": "upper.example", "no_proxy": ""}, "127.0.0.1"),
    ],
)
def test_hosts_without_proxy_are_those_of_urllib(
    variables: dict[str, str], expected: str, tmp_path: Path
) -> None:
    """getproxies_environment prefers the name in lower case, even with an empty value."""
    runner = HostRunner({"PATH": os.environ["PATH"], **variables})
    for installer in configured_installers(runner, tmp_path, config={}):
        command = installer.install_staged(
            Path("python"), Path("requirements.txt"), "http://127.0.0.1:1/simple/"
        )
        assert command.env["NO_PROXY"] == expected


def test_import_gets_no_credentials(tmp_path: Path) -> None:
    venv.create(tmp_path / "environment", symlinks=True)
    (site,) = (tmp_path / "environment" / "lib").glob("*/site-packages")
    (site / "curious.py").write_text(
        "import os\n\nassert 'AWS_SECRET_ACCESS_KEY' not in os.environ\n"
    )
    source = installation.InstallationSource(
        index="http://127.0.0.1/",
        wheel_set=replace(wheel_set(), wheels=(), pins={}),
        lock=None,
    )
    runner = HostRunner({**os.environ, "AWS_SECRET_ACCESS_KEY": "secret"})
    test = installation.InstallationTest(
        source, runner, configured_uv(runner), OWN, tmp_path
    )
    test._probe({}, ["curious"])
