"""Steps for several Pythons at the same time.

Resolution and downloads with a pip that this test controls.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from ci_build.rocm.set_lock import set_lock
from ci_build.wheelset.execute import SetExecution
from ci_build.wheelset.finished_wheels import _refuse_other_targets
from ci_build.wheelset.set_plan import Build, Fetch, Repair, Resolve, make_plan
from core import cache_entries
from core.cache_entries import collect
from core.digests import sha256_of
from core.errors import FatbinError, InputError
from core.model import WheelSet
from core.process import ProcessResult
from core.steps import FinishedStep
from tests.support.sets import published_request, wheel_set
from tests.support.silent import Silent
from tests.unit.ci_build.test_set_lock import LOCK

PYTHONS = ("3.11", "3.12")
SHARED = "jax_rocm7_pjrt-0.10.2-py3-none-manylinux_2_27_x86_64.whl"


def files(python: str) -> dict[str, str]:
    """Return project -> file name of the wheels for one Python; the pjrt wheel serves all."""
    tag = f"cp{python.replace('.', '')}"
    return {
        "jaxlib": f"jaxlib-0.10.2-{tag}-{tag}-manylinux_2_27_x86_64.whl",
        "jax-rocm7-plugin": (
            f"jax_rocm7_plugin-0.10.2-{tag}-{tag}-manylinux_2_27_x86_64.whl"
        ),
        "jax-rocm7-pjrt": SHARED,
    }


class FakePip:
    """A runner whose pip resolves and downloads both Pythons' wheels only in parallel.

    Attributes:
        downloaded: number of downloads by file name.
    """

    def __init__(self) -> None:
        self.downloaded = Counter[str]()
        self._both = threading.Barrier(len(PYTHONS), timeout=20)

    def run(self, argv: Sequence[str], **_: object) -> ProcessResult:
        """Run pip."""
        words = [*argv]
        python = next(
            word.removeprefix("--python-version=")
            for word in words
            if word.startswith("--python-version=")
        )
        self._both.wait()
        if "download" in words:
            options: Mapping[str, str] = dict(
                word.split("=", 1)
                for word in words
                if word.startswith("--") and "=" in word
            )
            wanted = re.findall(
                r"^(.+)==", Path(options["--requirement"]).read_text(), re.MULTILINE
            )
            (folder := Path(options["--dest"])).mkdir()
            for name in (files(python)[project] for project in wanted):
                (folder / name).write_text(name)
                self.downloaded[name] += 1
            return ProcessResult(returncode=0)
        return ProcessResult(
            returncode=0,
            stdout=json.dumps(
                {"version": "1", "install": [*map(_row, files(python).items())]}
            ),
        )


def _row(item: tuple[str, str]) -> dict[str, Any]:
    project, name = item
    digest = sha256_of(name.encode())
    return {
        "metadata": {
            "name": project,
            "version": "0.10.2",
            "requires_python": ">=3.11",
        },
        "download_info": {
            "url": f"https://example.org/{name}",
            "archive_info": {"hashes": {"sha256": digest}},
        },
    }


def run_of(pip: FakePip, cache: Path, *kinds: type) -> SetExecution:
    """Run the steps of these kinds of a build."""
    plan = make_plan(published_request("gfx942", python_versions=PYTHONS))
    run = SetExecution(
        plan=plan, out=cache / "out", cache=cache, runner=pip, progress=Silent()
    )
    for kind in kinds:
        run._do_together([step for step in plan.steps if isinstance(step, kind)])
    return run


def test_pythons_are_resolved_and_fetched_at_the_same_time(tmp_path: Path) -> None:
    pip = FakePip()
    run = run_of(pip, tmp_path, Resolve, Fetch)
    for python in PYTHONS:
        assert {item.name: item.filename for item in run.resolved[python]} == files(
            python
        )
        assert all(run.inputs.has(item) for item in run.resolved[python])
    assert pip.downloaded == Counter(
        dict.fromkeys({*files("3.11").values(), *files("3.12").values()}, 1)
    )


def test_wheels_that_differ_for_pythons_are_refused(tmp_path: Path) -> None:
    run = run_of(FakePip(), tmp_path, Resolve)
    run.resolved["3.12"] = tuple(
        replace(item, sha256="0" * 64) for item in run.resolved["3.12"]
    )
    with pytest.raises(InputError, match="One wheel of jax-rocm7-pjrt is needed"):
        run._input(next(step for step in run.plan.steps if isinstance(step, Repair)))


def test_generic_code_is_no_code_of_a_feature(tmp_path: Path) -> None:
    done = Mock(targets_kept=("gfx942",))
    _refuse_other_targets(published_request("gfx942"), done)
    with pytest.raises(FatbinError, match=r"gfx942:xnack\+"):
        _refuse_other_targets(published_request("gfx942:xnack+"), done)


def test_run_keeps_inputs_and_steps_from_gc_until_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(FakePip(), tmp_path, Resolve, Fetch)
    done = FinishedStep(
        wheel=wheel_set().wheels[0], folder=tmp_path / "steps" / ("0" * 64), saved=""
    )
    built = replace(run.resolved["3.11"][0], sha256="0" * 64)
    for folder in (done.folder, run.inputs.folder(built.sha256)):
        folder.mkdir(parents=True)
    monkeypatch.setattr(run, "builder", Mock(build=lambda *_: built))
    monkeypatch.setattr(run.wheels, "make", lambda *_: done)
    run._do(Build(what="build", command=Mock()))
    run._do(next(step for step in run.plan.steps if isinstance(step, Repair)))
    names = chain.from_iterable(files(python).values() for python in PYTHONS)
    count = len(set(names)) + 2
    monkeypatch.setattr(cache_entries, "_YOUNG", -1)
    with run.used:
        assert collect(tmp_path, limit=-1) == ()
    assert len(collect(tmp_path, limit=-1)) == count


def test_set_has_lock_of_plan(tmp_path: Path) -> None:
    done = FinishedStep(wheel=wheel_set().wheels[0], folder=tmp_path, saved="")
    (tmp_path / done.wheel.filename).touch()

    def assembled(lock: bytes, out: str) -> WheelSet:
        plan = replace(
            make_plan(published_request("gfx942"), rocm_lock=lock), stages=()
        )
        run = SetExecution(
            plan=plan,
            out=tmp_path / out,
            cache=tmp_path,
            runner=FakePip(),
            progress=Silent(),
        )
        run.done.append(done)
        return run._assemble()

    data = set_lock(LOCK)
    other = set_lock(replace(LOCK, size=2))
    made = assembled(data, "out")
    assert made.files["rocm.lock"] == sha256_of(data)
    assert made.file_sizes["rocm.lock"] == len(data)
    assert (tmp_path / "out/rocm.lock").read_bytes() == data
    assert LOCK.source in (tmp_path / "out/sbom.cdx.json").read_text()
    assert assembled(data, "again").digest == made.digest
    assert assembled(other, "other").digest != made.digest
    assert "rocm.lock" not in assembled(b"", "out").files
