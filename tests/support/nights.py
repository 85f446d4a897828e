"""Releases and nights of small wheels.

A folder of published wheels, a policy, and gates that pass at once.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from ci_build import cli
from ci_build.release import gating, night_lock, pipeline
from ci_build.release import index_authority as authority
from ci_build.wheelset import execute
from ci_build.wheelset.published import resolve
from core.model import BuildRequest, Evidence, Finding, Outcome, Severity
from core.pip import Resolved
from core.process import Runner
from promotion.evidence.evidence import now, record
from promotion.evidence.signing import Signer
from promotion.gates.common.gate_context import Check
from promotion.policy.promotion_policy import POLICY_FILE, load_policy
from promotion.stage import read_staged
from promotion.storage.bucket import Bucket
from promotion.storage.object_keys import StagedSet
from tests.support.made_wheel import GLIBC, library
from tests.support.signing_key import signing_key
from tests.support.tiny_elf import TinySymbol
from tests.support.wheel_sets import passing_evidence, pjrt, plain, plugin

JAX = "0.10.2"
INDEX = "multi-arch"


def signer() -> Signer:
    return Signer(signing_key().encode(), origin="tests")


def publish_wheels(folder: Path, comment: str = "") -> None:
    """Write the published wheels of a release, and its jax.

    A comment changes the bytes of the plugin.
    """
    folder.mkdir(exist_ok=True)
    made = plugin(JAX)
    for name in ("_hybrid", "_rnn", "_sparse", "_triton", "rocm_plugin_extension"):
        entry = [TinySymbol(f"PyInit_{name}", defined=True)]
        made.files[f"jax_rocm7_plugin/{name}.so"] = library(GLIBC, entry=entry)
    if comment:
        made.metadata.append(f"Keywords: {comment}")
    jaxlib = plain("jaxlib", JAX, tag="cp312-cp312-manylinux_2_28_x86_64")
    library_wheel = pjrt(JAX)
    for wheel in (library_wheel, made):
        wheel.replace("Summary", "JAX on some ROCm")  # the nights choose among several
    for wheel in (library_wheel, made, jaxlib, plain("jax", JAX, tag="py3-none-any")):
        wheel.write(folder)


@dataclass
class Nights:
    """A place for releases and nights in this process, without real gates.

    Attributes:
        wheels: folder of published wheels.
        cache: cache of downloads and finished steps.
        failing: gates that fail.
        device: whether evidence of the device gate exists as soon as the other gates
            ran.
        has_python: whether the machine has the Python of the wheels.
        gated: sets whose gates ran.
        checked: URLs of released indexes that were checked.
    """

    folder: Path
    wheels: Path
    cache: Path
    failing: list[str] = field(default_factory=list)
    device: bool = True
    has_python: bool = True
    broken_index: bool = False
    gated: list[str] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)

    @property
    def bucket(self) -> Path:
        return self.folder / "bucket"

    def run(
        self,
        command: str,
        *words: str,
        bucket: bool = True,
    ) -> int:
        """Run a command with the options of a set of small published wheels."""
        more = (
            "--payload=published",
            f"--jax-version={JAX}",
            "--python-versions=3.12",
            "--targets=gfx942,gfx950",
        )
        places = (
            f"--find-links={self.wheels}",
            f"--cache-dir={self.cache}",
            f"--out={self.folder / 'dist'}",
        )
        return cli.run(
            [
                command,
                *more,
                *places,
                *((f"--bucket={self.bucket}",) if bucket else ()),
                *words,
            ]
        )


def record_passes(
    bucket: Bucket, staged: StagedSet, gates: Sequence[str]
) -> list[Evidence]:
    """Store evidence of passed gates that satisfies the policy of nightly sets."""
    wheel_set = read_staged(bucket, staged)
    found = [
        replace(item, started=now(), ended=now())
        for item in passing_evidence(
            wheel_set, load_policy(staged.index, channel="nightly")
        )
        if item.gate in gates
    ]
    for item in found:
        record(bucket, staged, item, signer=signer())
    return found


def _gates(made: Nights, staged: StagedSet, bucket: Bucket) -> tuple[Evidence, ...]:
    """Record passes and failures of the gates that a night runs."""
    made.gated.append(staged.digest)
    policy = load_policy(staged.index, channel="nightly")
    names = [
        gate
        for gate in policy.gates
        if gate not in made.failing and (made.device or gate != "device")
    ]
    passed = record_passes(bucket, staged, names)
    finding = Finding(
        code="broken", severity=Severity.ERROR, message="It broke.", remedy="Repair it."
    )
    failed = [
        replace(
            item,
            outcome=Outcome.FAILED,
            findings=(finding,),
            started=now(),
            ended=now(),
        )
        for item in passing_evidence(read_staged(bucket, staged), policy)
        if item.gate in made.failing
    ]
    for item in failed:
        record(bucket, staged, item, signer=signer())
    return (*passed, *failed)


def _checks(made: Nights, url: str) -> tuple[Check, ...]:
    made.checked.append(url)
    finding = Finding(
        code="install-failed",
        severity=Severity.ERROR,
        message="No.",
        remedy="Repair it.",
    )
    return (
        Check(name="pip", findings=(finding,) if made.broken_index else ()),
        Check(name="uv"),
    )


def use_policy(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    """Use a policy that accepts the tests' key, a ledger key, and a clean checkout."""
    monkeypatch.setenv("CI_BUILD_LEDGER_KEY", signing_key())
    clean = f"# branch.oid {'c' * 40}\n# branch.head main\n"
    monkeypatch.setattr(authority, "_git_status", lambda _: clean)
    text = POLICY_FILE.read_text()
    for name in ("keys", "ledger_keys"):
        assert text.count(f"\n{name} = {{}}\n") == 1
        text = text.replace(
            f"\n{name} = {{}}\n", f'\n{name} = {{ tests = "{signer().key}" }}\n'
        )
    file.write_text(text)
    defaults = load_policy.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "file", file)


@pytest.fixture(scope="session")
def small_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a release's wheels, the set built from them, and the cache."""
    folder = tmp_path_factory.mktemp("nights")
    publish_wheels(folder / "wheels")
    with pytest.MonkeyPatch.context() as patch:
        _without_index(patch)
        assert (
            Nights(folder, wheels=folder / "wheels", cache=folder / "cache").run(
                "dist_wheels", bucket=False
            )
            == 0
        )
    return folder


@pytest.fixture
def nights(
    tmp_path: Path, small_release: Path, monkeypatch: pytest.MonkeyPatch
) -> Nights:
    """Provide a place for nights, where the set of one release is already built."""
    made = Nights(
        tmp_path, wheels=small_release / "wheels", cache=small_release / "cache"
    )
    shutil.copytree(small_release / "dist", tmp_path / "dist")
    made.bucket.mkdir()
    monkeypatch.chdir(tmp_path)
    _without_index(monkeypatch)
    use_policy(monkeypatch, tmp_path / "policy.toml")
    for module in (night_lock, execute):
        monkeypatch.setattr(module, "resolve", _remembered)
    monkeypatch.setattr(
        gating,
        "run_gates",
        lambda _, staged, bucket, *more, **options: _gates(made, staged, bucket),
    )
    monkeypatch.setattr(
        pipeline,
        "find_pythons",
        lambda versions, _: versions if made.has_python else {},
    )
    monkeypatch.setattr(
        pipeline,
        "released_checks",
        lambda staged, bucket, url, *more: _checks(made, url),
    )
    return made


_RESOLVED: dict[tuple[object, ...], tuple[Resolved, ...]] = {}


def _remembered(
    request: BuildRequest, python: str, runner: Runner, log: Path
) -> tuple[Resolved, ...]:
    """Return what pip finds; it starts once for each content of the folder."""
    (folder,) = map(Path, request.find_links)
    state = tuple(
        sorted((path.name, path.stat().st_mtime_ns) for path in folder.iterdir())
    )
    key = (request.jax_version, request.rocm_version.major, python, str(folder), state)
    if key not in _RESOLVED:
        _RESOLVED[key] = resolve(request, python, runner, log)
    return _RESOLVED[key]


def _without_index(patch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": " ",
        "no_proxy": "*",
    }.items():
        patch.setenv(name, value)
