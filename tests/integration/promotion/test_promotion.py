"""Staging, gates with real pip and uv, promotion, installation and expected failures."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.errors import PromotionBlockedError
from core.model import Evidence, Outcome
from core.process import HostRunner, Runner
from promotion.gates import inspection_gate as inspection
from promotion.gates.common.gate_runs import run_gates
from promotion.gates.common.uv_installer import Installer
from promotion.gates.coverage import coverage_gate
from promotion.gates.install import install_gate
from promotion.gates.install.installer_table import configured_installers
from promotion.index.serve import IndexServer
from promotion.policy.promotion_policy import Policy, load_policy
from promotion.promote import install_line, promote
from promotion.stage import stage
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import StagedSet
from tests.support.machine import user_environment
from tests.support.made_kernels import clean_kernels, tell
from tests.support.silent import Steps
from tests.support.wheel_sets import (
    PJRT_LIBRARY,
    SetWheel,
    make_set,
    make_wheels,
    ordinary_index,
    pjrt,
    set_wheel,
    write_set,
)

OWN = "{}.{}".format(*sys.version_info[:2])
ABSENT = "3.99"


@pytest.fixture
def runner(tmp_path: Path) -> HostRunner:
    """Run processes with a folder with a small jax as their ordinary package index."""
    return HostRunner(user_environment(ordinary_index(tmp_path / "ordinary")))


@pytest.fixture
def bucket(tmp_path: Path) -> DirBucket:
    return DirBucket(tmp_path / "bucket")


def policy_for_made_up_libraries() -> Policy:
    """Return the local policy without the gates that need loadable libraries."""
    policy = load_policy("multi-arch")
    return replace(
        policy,
        gates={
            name: policy.gates[name] for name in ("inspection", "coverage", "install")
        },
    )


def staged_in(
    bucket: DirBucket,
    folder: Path,
    wheels: Sequence[SetWheel],
    pythons: tuple[str, ...] = (OWN,),
    **changes: Any,
) -> StagedSet:
    wheel_set = make_set(wheels, python_versions=pythons, **changes)
    return stage(bucket, write_set(folder / "set", wheels, wheel_set))


def only_uv(runner: Runner, cache: Path) -> tuple[Installer, ...]:
    return configured_installers(runner, cache)[1:]


def installed(
    bucket: DirBucket,
    staged: StagedSet,
    runner: HostRunner,
    *,
    with_: Any = only_uv,
    pythons: Any = None,
) -> Evidence:
    """Return the evidence of the install gate."""
    gate = install_gate.make_gate(
        {OWN: Path(sys.executable)} if pythons is None else pythons, with_=with_
    )
    (evidence,) = run_gates(bucket, staged, [gate], runner, Steps())
    return evidence


def test_install_gate_passes_and_set_is_promoted(
    bucket: DirBucket, tmp_path: Path, runner: HostRunner
) -> None:
    wheels = make_wheels(tmp_path / "w", pythons=(OWN,))
    staged = staged_in(bucket, tmp_path, wheels)
    gates = (inspection.GATE, coverage_gate.GATE, install_gate.make_gate())
    policy = policy_for_made_up_libraries()
    steps = Steps()
    with pytest.raises(PromotionBlockedError, match="The gate install has not run"):
        promote(bucket, staged, policy)
    evidences = run_gates(bucket, staged, gates, runner, steps)
    assert [e.findings for e in evidences] == [()] * 4
    (gate,) = [evidence for evidence in evidences if evidence.gate == "install"]
    assert gate.counts == {
        "collected": 8,
        "run": 8,
        "passed": 8,
        "failed": 0,
        "known": 0,
        "skipped": 0,
    }
    checks = {check["name"]: check for check in gate.details["checks"]}
    for program in ("pip", "uv"):
        where = f"{program} for Python {OWN}"
        assert checks[where]["installed"]["jax-rocm7-pjrt"] == wheels[0].wheel.version
        assert checks[where]["installed"]["small-dependency"] == "1.0"
        chosen = [
            "jax",
            "jax-rocm7-pjrt",
            "jax-rocm7-plugin",
            "jaxlib",
            "small-dependency",
        ]
        assert checks[f"resolution by {where}"]["chosen"] == chosen
        loader = checks[f"loader after {where}"]["loader"]
        assert (
            loader
            == "jax-rocm7-pjrt 0.10.2+rocm7.2.0 cannot use ROCm: no AMD GPU was found."
            " Load the driver."
        )
    assert checks["wrong pair with uv"]["jaxlib"] == "0.11.0"
    done = promote(bucket, staged, policy, progress=steps)
    assert {*done.promoted.tiers.values()} == {"structure"}
    assert any("install with uv" in step for step in steps.steps)
    again = run_gates(bucket, staged, gates, HostRunner({}), steps)
    assert again == evidences, "what passed is not run again"
    # The command that the receipt prints, run like by a user.
    with IndexServer(bucket.root) as server:
        line = install_line(done.wheel_set, server.url + done.simple)
        words = line.split()
        assert words[:3] == ["pip", "install", "--extra-index-url"]
        pins = ["jaxlib==0.10.2", "jax==0.10.2"]
        assert words[4:] == ["jax-rocm7-plugin==0.10.2+rocm7.2.0", *pins]
        target = tmp_path / "target"
        # A user's pip has an index; here it is ours, and the folder with jax.
        argv = (
            sys.executable,
            "-m",
            "pip",
            "install",
            f"--target={target}",
            "--index-url",
            *words[3:],
        )
        runner.run((*argv, "--no-cache-dir"), env={"PIP_NO_INDEX": ""})
    assert (target / PJRT_LIBRARY).is_file()


def test_install_gate_passes_for_other_rocm_major(
    bucket: DirBucket, tmp_path: Path, runner: HostRunner
) -> None:
    version = "0.10.2+rocm10.2.0"
    wheels = make_wheels(tmp_path / "w", version=version, pythons=(OWN,), major=10)
    staged = staged_in(bucket, tmp_path, wheels, rocm_version="10.2.0")
    gates = (inspection.GATE, coverage_gate.GATE, install_gate.make_gate(with_=only_uv))
    evidences = run_gates(bucket, staged, gates, runner, Steps())
    assert [evidence.findings for evidence in evidences] == [()] * 4
    done = promote(bucket, staged, policy_for_made_up_libraries())
    line = install_line(done.wheel_set, "http://127.0.0.1/simple/")
    pins = ["jaxlib==0.10.2", "jax==0.10.2"]
    assert line.split()[4:] == [f"jax-rocm10-plugin=={version}", *pins]


def test_install_gate_skips_missing_python(
    bucket: DirBucket, tmp_path: Path, runner: HostRunner
) -> None:
    wheels = make_wheels(tmp_path / "w", pythons=(OWN, ABSENT))
    staged = staged_in(bucket, tmp_path, wheels, (OWN, ABSENT))
    pythons = {OWN: Path(sys.executable)}
    evidence = installed(
        bucket, staged, runner, with_=configured_installers, pythons=pythons
    )
    assert evidence.findings == ()
    assert evidence.counts == {
        "collected": 10,
        "run": 8,
        "passed": 8,
        "failed": 0,
        "known": 0,
        "skipped": 2,
    }
    skipped = [
        check for check in evidence.details["checks"] if check["outcome"] == "skipped"
    ]
    assert {check["name"] for check in skipped} == {
        f"pip for Python {ABSENT}",
        f"uv for Python {ABSENT}",
    }
    assert all("on this machine" in check["why"] for check in skipped)
    run_gates(bucket, staged, (inspection.GATE, coverage_gate.GATE), runner, Steps())
    assert promote(bucket, staged, policy_for_made_up_libraries()).new


def with_pjrt(tmp_path: Path, made: Any) -> list[SetWheel]:
    wheels = make_wheels(tmp_path / "w", pythons=(OWN,))
    return [
        set_wheel(made, tmp_path / "w", {PJRT_LIBRARY: ("gfx942", "gfx950")}),
        *wheels[1:],
    ]


SILENT = "def initialize():\n    pass\n"


def test_install_gate_accepts_published_loader(
    bucket: DirBucket, tmp_path: Path, runner: HostRunner
) -> None:
    first, *others = with_pjrt(tmp_path, pjrt(loader=SILENT))
    first = replace(first, wheel=replace(first.wheel, source_sha256=first.wheel.sha256))
    evidence = installed(bucket, staged_in(bucket, tmp_path, [first, *others]), runner)
    assert evidence.outcome is Outcome.PASSED
    assert evidence.findings == ()


def test_install_gate_reports_unforbidden_pair(
    bucket: DirBucket, tmp_path: Path, runner: HostRunner
) -> None:
    made = pjrt()
    made.replace("Requires-Dist", "jaxlib>=0.10.2")
    staged = staged_in(bucket, tmp_path, with_pjrt(tmp_path, made))
    evidence = installed(bucket, staged, runner, with_=configured_installers)
    assert evidence.outcome is Outcome.FAILED
    assert [finding.code for finding in evidence.findings] == ["pair-accepted"]
    assert (
        "can be installed with jaxlib 0.11.0, with which it was neither"
        in evidence.findings[0].message
    )


@pytest.mark.parametrize(
    ("version", "requirement", "accepted"),
    [
        ("0.10.2+rocm7.2.0", "jaxlib<=0.10.2,>=0.10.2", False),
        ("1.0.0", "jaxlib", True),
    ],
)
def test_install_gate_resolves_kernels_with_too_old_jaxlib(
    bucket: DirBucket,
    tmp_path: Path,
    runner: HostRunner,
    version: str,
    requirement: str,
    accepted: bool,
) -> None:
    made = clean_kernels()
    made.version = version
    made.replace("Version", version)
    made.metadata.append(f"Requires-Dist: {requirement}")
    tell(made, version=version)
    wheels = [
        *make_wheels(tmp_path / "w", pythons=(OWN,)),
        set_wheel(made, tmp_path / "w"),
    ]
    evidence = installed(
        bucket, staged_in(bucket, tmp_path, wheels), runner, with_=only_uv
    )
    found = [
        finding for finding in evidence.findings if finding.code.startswith("pair")
    ]
    assert [finding.code for finding in found] == ["pair-accepted"] * accepted
    assert not accepted or "can be installed with jaxlib 0.7.2" in found[0].message
