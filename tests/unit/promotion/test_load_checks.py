"""Checks of the load gate, without running probes."""

from __future__ import annotations

import ctypes
import glob
import io
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from core.errors import BucketError, CiBuildError, MachineError
from promotion.gates.load import load_child, load_gate, machine_child
from promotion.gates.load.load_checks import PJRT, PLUGIN
from promotion.gates.load.machines import Machine, check_machines, machines
from promotion.gates.load.python_packages import modules_of
from tests.support.files import write_files
from tests.support.sets import wheel_set
from tests.unit.gate_table.load import CHILDREN


def machine(**changes: Any) -> Machine:
    return Machine(
        **{"about": "a machine", "gpus": ("gfx942",), "rocm": Path("/rocm"), **changes}
    )


@pytest.mark.parametrize("kind", [MachineError, BucketError])
def test_load_gate_does_not_blame_the_set_for_the_machine(
    kind: type[CiBuildError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_site(*_: object) -> None:
        raise kind("The package index does not answer.")

    monkeypatch.setattr(load_gate, "make_site", make_site)
    context: Any = SimpleNamespace(
        wheel_set=wheel_set(), pythons=lambda: {"3.12": Path("python3.12")}
    )
    with pytest.raises(kind, match="does not answer"):
        list(load_gate.make_gate().run(context))


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        (("dlopen", "module", "initialize", "handlers"), {"load-failed"}),
        (("module", "handlers"), {"import-failed"}),
        (("initialize", "handlers"), {"start-failed", "jax-failed"}),
    ],
)
def test_load_gate_reports_first_failure_only(
    broken: tuple[str, ...], expected: set[str], tmp_path: Path
) -> None:
    children = CHILDREN.make(tmp_path)
    for function in broken:
        children.change(function, values={"error": "undefined symbol: x"})
    found = CHILDREN.judge(children, tmp_path)
    assert {finding.code for finding in found} == expected


def test_check_machines_misses_no_answer() -> None:
    assert [finding.code for finding in check_machines("w", [machine()], {})] == [
        "loader-wrong"
    ]


@pytest.fixture
def rocm(tmp_path: Path) -> Path:
    (tmp_path / "rocm/lib").mkdir(parents=True)
    (tmp_path / "rocm/lib/libamdhip64.so.7").touch()
    return tmp_path / "rocm"


def test_machines_for_targets_that_xla_refuses_expect_refusal(
    rocm: Path, tmp_path: Path
) -> None:
    rows = list(machines(["gfx906"], "7.2.0", rocm, tmp_path / "work"))
    assert [row.refusal for row in rows] == [
        ("gfx906",),
        ("gfx908",),
        (),
        (),
        None,
    ]


def test_dlopen_names_library_that_flushes_denormals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", Mock())
    monkeypatch.setattr(sys, "float_info", SimpleNamespace(min=0.0))
    assert load_child.dlopen("/site/x.so") == {"flushes": "/site/x.so"}


# Packages


def test_package_without_init_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python accepts a namespace package."""
    write_files(tmp_path, {"made_package/build_info.py": ""})
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ImportError, match="__init__"):
        load_child.package("made_package", "made", "made_package.build_info")


def test_modules_of_lists_every_module_but_excused_ones() -> None:
    names = [
        "jax_plugins/xla_rocm7/__init__.py",
        "jax_plugins/xla_rocm7/_gpus.py",
        "jax_plugins/xla_rocm7/_register.py",
    ]
    names += [
        "jax_plugins/xla_rocm7/xla_rocm_plugin.so",
        "x-1.dist-info/licenses/setup.py",
        "a/b-c.py",
    ]
    assert modules_of(names) == ("jax_plugins.xla_rocm7", "jax_plugins.xla_rocm7._gpus")
    assert modules_of(["jax_plugins/xla_rocm10/_register.py"]) == ()


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (
            "jax_rocm10_plugin/_rnn.cpython-312-x86_64-linux-gnu.so",
            ("jax_rocm10_plugin", "_rnn"),
        ),
        (
            "jax_plugins/xla_rocm10/xla_rocm_plugin.so",
            ("xla_rocm10", "xla_rocm_plugin"),
        ),
        ("jax_rocm7_plugin/sub/_solver.so", None),
    ],
)
def test_patterns_match_plugin_and_pjrt_paths(
    path: str, found: tuple[str, str] | None
) -> None:
    match = PLUGIN.fullmatch(path) or PJRT.fullmatch(path)
    assert (match.groups() if match else None) == found


def test_redirect_covers_the_functions_that_glob_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Path.glob of Python 3.13 calls a scandir that it got before the redirection."""
    globber = SimpleNamespace(scandir=os.scandir)
    monkeypatch.setattr(glob, "_StringGlobber", globber, raising=False)
    for name in machine_child._FILE_FUNCTIONS:
        monkeypatch.setattr(os, name, getattr(os, name))
    monkeypatch.setattr(io, "open", io.open)
    monkeypatch.setattr("builtins.open", open)
    write_files(tmp_path, {"dev/dri/renderD128": ""})
    machine_child.redirect(str(tmp_path))
    assert [one.name for one in globber.scandir("/dev/dri")] == ["renderD128"]
