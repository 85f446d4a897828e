"""Generators of device libraries that fail or change."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.errors import KernelError
from core.model import KernelRequest
from core.process import HostRunner
from core.report import NoProgress
from kernels.aiter_sources import SourceTree
from kernels.build_context import BuildContext
from kernels.generate import generate
from kernels.module_catalog import load_catalog
from kernels.modules import Generator, KernelModule

SCRIPT = """
import pathlib, sys
out = pathlib.Path(sys.argv[1])
for name in ("a_x.cpp", "b_x.cpp", "c_y.cpp", "common.hpp"):
    (out / name).write_text(name)
sys.exit(int(sys.argv[2]))
"""


def module(**changes: Any) -> KernelModule:
    generator = Generator(
        script="gen/gen.py",
        arguments=("{out}", "0"),
        suffix=".cpp",
        count=3,
        kept=2,
        keep=(r".*_x\.cpp",),
    )
    return replace(
        load_catalog().modules["ck_rms_norm"],
        headers=("include",),
        generators=(replace(generator, **changes),),
    )


@pytest.fixture
def tree(tmp_path: Path) -> SourceTree:
    folder = tmp_path / "source"
    (folder / "gen").mkdir(parents=True)
    (folder / "gen" / "gen.py").write_text(SCRIPT)
    files = {"gen/gen.py": hashlib.sha256(SCRIPT.encode()).hexdigest()}
    return SourceTree(
        folder=folder,
        files=files,
        origin=None,
        name="s",
    )


def generated(
    tree: SourceTree,
    cache: Path,
    instances: str = "",
    **changes: Any,
) -> tuple[list[str], list[str]]:
    request = KernelRequest(instances=instances)
    runner = HostRunner(os.environ)
    context = BuildContext(cache=cache, runner=runner, progress=NoProgress())
    made = generate(module(**changes), tree, context, request)
    return sorted(made.units), sorted(made.headers)


def test_unreachable_instances_are_not_compiled(
    tree: SourceTree, tmp_path: Path
) -> None:
    kept = (["a_x.cpp", "b_x.cpp"], ["common.hpp"])
    assert generated(tree, tmp_path / "cache") == kept
    # The second run must not call the generator.
    (tree.folder / "gen" / "gen.py").unlink()
    assert generated(tree, tmp_path / "cache") == kept


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"arguments": ("{out}", "3")},
            r"The generator gen/gen\.py of ck_rms_norm failed: .*exit code 3",
        ),
        ({"count": 4}, r"wrote 3 files, not 4"),
        ({"common": "_x", "common_count": 2}, r"wrote 3 files, not 2"),
        ({"keep": ("none",), "kept": 1}, r"keeps 0 files of gen/gen\.py, not 1"),
    ],
)
def test_generator_failure_or_other_output_is_an_error(
    changes: dict[str, Any],
    said: str,
    tree: SourceTree,
    tmp_path: Path,
) -> None:
    with pytest.raises(KernelError, match=said):
        generated(
            tree,
            tmp_path / "cache",
            **changes,
        )
    assert [
        path for path in (tmp_path / "cache" / "generated").iterdir() if path.is_dir()
    ] == []


def test_instance_pattern_without_match_is_an_error(
    tree: SourceTree, tmp_path: Path
) -> None:
    units, _ = generated(tree, tmp_path, "_x", count=9, kept=9)
    assert units == ["a_x.cpp", "b_x.cpp"]
    said = "No instance of ck_rms_norm has a name that matches '_z'"
    for keep in ("none", r"rmsnorm2d_fwd_api\.cpp"):
        with pytest.raises(KernelError, match=said):
            generated(tree, tmp_path, "_z", keep=(keep,))


@pytest.mark.parametrize(
    "line", ["import socket; socket.socket()", "import os; os.system('true')"]
)
def test_generator_cannot_use_network_or_processes(
    line: str,
    tree: SourceTree,
    tmp_path: Path,
) -> None:
    (tree.folder / "gen" / "gen.py").write_text(f"{line}\n{SCRIPT}")
    with pytest.raises(
        KernelError,
        match=(
            r"(?s)gen/gen\.py of ck_rms_norm failed: .*generators must not use the"
            r" network or start processes"
        ),
    ):
        generated(tree, tmp_path / "cache")
