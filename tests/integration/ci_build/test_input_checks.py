"""The MD5 of old device code is compared once per input, and always before the code is slimmed."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ci_build.wheelset.execute import SetExecution
from ci_build.wheelset.set_plan import Repair, make_plan
from core.digests import sha256_of
from core.errors import FatbinError
from core.pip import InputStore, Resolved
from core.process import HostRunner
from core.report import Reporter
from tests.support.sets import published_request
from tests.support.tiny_wheel import record_line
from wheelkit.repair.repair_plan import RepairPlan, RepairResult
from wheelkit.repair.wheel_repair import repair

pytestmark = pytest.mark.network
PROJECT = "jax-rocm7-plugin"


@pytest.fixture(scope="module")
def plugin(real_wheel: Callable[..., Path]) -> Path:
    """Return the published plugin for Python 3.12."""
    return real_wheel(PROJECT, "0.10.2")


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Record whether each repair compared the MD5s."""
    found: list[bool] = []

    def watched(
        source: Path, plan: RepairPlan, out: Path, **more: object
    ) -> RepairResult:
        found.append(plan.verify_bundles)
        return repair(source, plan, out, **more)  # type: ignore[arg-type]

    monkeypatch.setattr("ci_build.wheelset.finished_wheels.repair", watched)
    return found


def broken(source: Path, folder: Path) -> Path:
    """Return a copy of a wheel with one flipped bit in a bundle and matching RECORD."""
    out = folder / source.name
    lines: list[str] = []
    with (
        zipfile.ZipFile(source) as old,
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for entry in old.infolist():
            data = bytearray(old.read(entry))
            if entry.filename.endswith("/_solver.so"):
                data[data.rindex(b"CCOB") + 24] ^= 1
            if entry.filename.endswith("/RECORD"):
                data = bytearray("".join([*lines, f"{entry.filename},,\n"]).encode())
            lines.append(record_line(entry.filename, bytes(data)))
            new.writestr(entry, bytes(data))
    return out


def build(
    source: Path,
    cache: Path,
    *targets: str,
    program: str = "",
) -> None:
    """Run the plugin's step of a build whose input was downloaded before."""
    request = published_request(*targets)
    item = Resolved(
        name=PROJECT,
        version="0.10.2",
        filename=source.name,
        url="https://example.org/it.whl",
        sha256=sha256_of(source),
        requires_python="",
    )
    kept = InputStore(cache / "inputs").path(item)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.unlink(missing_ok=True)
    kept.hardlink_to(source)
    plan = make_plan(request)
    run = SetExecution(
        plan=plan,
        out=cache / "out",
        cache=cache,
        runner=HostRunner({}),
        progress=Reporter(terminal=False),
    )
    run.resolved = {"3.12": (item,)}
    tools = run.wheels.tools
    run.wheels.tools = {**tools, "ci_build": program or tools["ci_build"]}
    steps = [step for step in plan.steps if isinstance(step, Repair)]
    (step,) = [step for step in steps if step.project == PROJECT]
    run._do(step)


def test_input_is_checked_once_for_all_targets(
    plugin: Path, tmp_path: Path, checks: list[bool], capsys: pytest.CaptureFixture[str]
) -> None:
    build(plugin, tmp_path, "gfx942")
    lines = re.findall(
        r"^  repair jax-rocm7-plugin for Python 3\.12: (.+)$",
        capsys.readouterr().err,
        re.MULTILINE,
    )
    assert [line.split()[0] for line in lines] == ["verify", "edit", "write"]
    build(plugin, tmp_path, "gfx950")
    build(plugin, tmp_path, "gfx942", "gfx950")
    assert checks == [True, False, False]
    build(plugin, tmp_path, "gfx942", program="another")
    assert checks == [True, False, False, True]


def test_damaged_bundle_is_never_accepted(
    plugin: Path, tmp_path: Path, checks: list[bool]
) -> None:
    """A second attempt and a good input beside the bundle do not change this."""
    cache = tmp_path / "cache"
    build(plugin, cache, "gfx942")
    damaged = broken(plugin, tmp_path)
    for targets in (("gfx942",), ("gfx942",), ("gfx950",)):
        with pytest.raises(FatbinError, match=r"_solver\.so.*MD5"):
            build(damaged, cache, *targets)
    assert checks == [True] * 4
