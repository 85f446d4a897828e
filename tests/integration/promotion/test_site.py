"""Sites: the result of installing a staged set for one Python, and the choice of its ROCm."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from core.errors import FormatError, GateError, MachineError
from core.process import HostRunner
from promotion.gates.common.gate_context import GateContext, SharedResults
from promotion.gates.common.gate_rocm import RocmTree
from promotion.gates.common.gate_site import (
    FROM_MANIFEST,
    FROM_NEEDS,
    TREE,
    Site,
    make_site,
    rocm_libraries,
    site_for,
)
from promotion.gates.load import load_gate
from tests.support.gating import gate_context, stage_wheels
from tests.support.machine import user_environment
from tests.support.wheel_sets import (
    PJRT_LIBRARY,
    TARGETS,
    SetWheel,
    lock_text,
    make_wheels,
    ordinary_index,
    pjrt,
    plain,
    set_wheel,
)
from wheelkit.rocm_manifest import (
    ROCM_MANIFEST,
    RocmLibrary,
    RocmManifest,
    dump_manifest,
)

ROOT = Path(__file__).resolve().parents[3]
OWN = "{}.{}".format(*sys.version_info[:2])
ABSENT = "3.99"


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return ordinary_index(tmp_path / "ordinary")


def room_for(
    folder: Path,
    index: Path,
    wheels: Sequence[SetWheel],
    pythons: Sequence[str] = (OWN,),
) -> GateContext:
    """Return the context of a staged set whose user's pip has a folder as index."""
    staged = stage_wheels(folder, wheels, python_versions=pythons)
    return gate_context(folder, *staged, HostRunner(user_environment(index)))


def installed(site: Site) -> set[str]:
    return {path.name for path in site.folder.glob("*.dist-info")}


def lock(context: GateContext, text: str) -> None:
    """Write a pylock.toml beside a staged set."""
    context.bucket.put_if_absent(
        context.staged.file("pylock.toml"),
        text.encode(),
        sha256=hashlib.sha256(text.encode()).hexdigest(),
    )


def test_site_installs_staged_bytes_only(tmp_path: Path, index: Path) -> None:
    """Neither the user's wheel of the same name nor a changed staged wheel is installed."""
    context = room_for(tmp_path, index, make_wheels(tmp_path / "w", pythons=(OWN,)))
    impostor = set_wheel(pjrt(targets=TARGETS[:1]), tmp_path)
    (index / impostor.wheel.filename).write_bytes(impostor.data)
    site = make_site(context, OWN)
    members = {}
    for wheel in context.wheel_set.wheels:
        for member in wheel.members:
            members[member.path] = member.sha256
    assert (
        hashlib.sha256((site.folder / PJRT_LIBRARY).read_bytes()).hexdigest()
        == members[PJRT_LIBRARY]
    )
    (staged,) = (tmp_path / "bucket").rglob(impostor.wheel.filename)
    staged.chmod(0o644)
    staged.write_bytes(impostor.data)
    with pytest.raises(
        GateError, match=f"The staged {re.escape(impostor.wheel.filename)} has sha256"
    ):
        make_site(replace(context, shared=tmp_path / "another"), OWN)


def test_site_writes_bytecode_outside_site_packages(
    tmp_path: Path, index: Path
) -> None:
    context = room_for(tmp_path, index, make_wheels(tmp_path / "w", pythons=(OWN,)))
    site = make_site(context, OWN)
    where = "import jax_plugins.xla_rocm7.version as module; print(module.__cached__)"
    for python in ((str(site.python),), site.isolated):
        compiled = Path(
            context.runner.run((*python, "-c", where), env=site.env).stdout.strip()
        )
        assert compiled.is_file()
        assert compiled.is_relative_to(context.shared)
    assert not [*site.folder.rglob("__pycache__")]


@pytest.mark.parametrize("changed", [False, True])
def test_site_shares_bytecode_of_equal_files(
    tmp_path: Path, index: Path, changed: bool
) -> None:
    context = room_for(tmp_path, index, make_wheels(tmp_path / "w", pythons=(OWN,)))
    site = make_site(context, OWN)
    package = Path("jax_plugins") / "xla_rocm7"
    context.runner.run(
        (*site.isolated, "-c", "import jax_plugins.xla_rocm7.version"), env=site.env
    )
    other = tmp_path / "other"
    source = other / package / "version.py"
    shutil.copytree(
        site.folder, other, copy_function=shutil.copyfile if changed else os.link
    )
    if changed:
        for path in other.rglob("*.py"):
            path.write_bytes(path.read_bytes() + b"#")
        site.share_bytecode(other)
        assert not [*other.rglob("*.pyc")]
        return
    site.share_bytecode(other)
    (compiled,) = source.parent.joinpath("__pycache__").glob("version.*.pyc")
    # Python uses it: it does not write the file again.
    before = compiled.stat().st_mtime_ns
    code = (
        f"import sys; sys.path.insert(0, {str(other)!r}); import"
        " jax_plugins.xla_rocm7.version as v; print(v.__file__)"
    )
    said = context.runner.run((sys.executable, "-I", "-v", "-c", code))
    assert said.stdout.strip() == str(source)
    assert f"# {compiled} matches {source}" in said.stderr
    assert compiled.stat().st_mtime_ns == before


def test_site_prefers_versions_of_lock_file(tmp_path: Path, index: Path) -> None:
    context = room_for(tmp_path, index, make_wheels(tmp_path / "w", pythons=(OWN,)))
    lock(context, lock_text(index))
    plain("jax", "0.10.3").write(index)
    assert "jax-0.10.2.dist-info" in installed(make_site(context, OWN))


def test_site_is_installed_again_after_a_failure(tmp_path: Path, index: Path) -> None:
    context = room_for(tmp_path, index, make_wheels(tmp_path / "w", pythons=(OWN,)))
    nowhere = {
        **user_environment(),
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "UV_HTTP_RETRIES": "0",
    }
    other = replace(context, runner=HostRunner(nowhere), results=SharedResults())
    with pytest.raises(MachineError, match="Cannot install"):
        make_site(other, OWN)
    assert "jax-0.10.2.dist-info" in installed(make_site(context, OWN))


def test_site_refuses_file_missing_in_lock(tmp_path: Path, index: Path) -> None:
    context = room_for(tmp_path, index, make_wheels(tmp_path / "w", pythons=(OWN,)))
    lock(
        context,
        re.sub('sha256 = "[0-9a-f]+"', f'sha256 = "{"0" * 64}"', lock_text(index)),
    )
    with pytest.raises(
        GateError, match=rf"Cannot install the set for Python {OWN}: (.|\n)*jax"
    ):
        make_site(context, OWN)


def test_site_keeps_own_wheels_over_jax_requirements(
    tmp_path: Path, index: Path
) -> None:
    wheels = [
        wheel
        for wheel in make_wheels(tmp_path / "w", pythons=(OWN,))
        if wheel.wheel.name != "jaxlib"
    ]
    tag = f"cp{OWN.replace('.', '')}"
    skewed = plain("jaxlib", "0.12.0", tag=f"{tag}-{tag}-manylinux_2_28_x86_64")
    plain("jaxlib", "0.10.2").write(index)
    site = make_site(
        room_for(tmp_path, index, [*wheels, set_wheel(skewed, tmp_path)]), OWN
    )
    assert "jaxlib-0.12.0.dist-info" in installed(site)
    assert "jaxlib-0.10.2.dist-info" not in installed(site)


def test_missing_python_is_skipped(tmp_path: Path, index: Path) -> None:
    wheels = make_wheels(tmp_path / "w", pythons=(OWN,))
    context = room_for(tmp_path, index, wheels, (ABSENT,))
    (check,) = load_gate.make_gate().run(context)
    assert check.outcome == "skipped"
    assert check.skipped == f"no Python {ABSENT} on this machine"
    with pytest.raises(MachineError, match=f"This machine has no Python {ABSENT}"):
        make_site(context, ABSENT)


# Choice of the ROCm

HIP = RocmLibrary(
    soname="libamdhip64.so.7",
    path="lib/libamdhip64.so.7",
    symbols={"hipInit": ("hip_4.2",)},
    needed=("libc.so.6",),
)
MANIFEST = RocmManifest(rocm_version="7.2.0", libraries={HIP.soname: HIP})


def site_in(folder: Path) -> Site:
    return Site(
        python=Path(sys.executable), version=OWN, folder=folder / "site", env={}
    )


def room_with(
    tmp_path: Path,
    index: Path,
    data: bytes,
    sha256: str,
) -> GateContext:
    """Return the context of a set whose manifest has these bytes, under this digest."""
    context = room_for(tmp_path, index, make_wheels(tmp_path / "w", pythons=(OWN,)))
    key = context.staged.file(ROCM_MANIFEST)
    context.bucket.put_if_absent(key, data, sha256=hashlib.sha256(data).hexdigest())
    return replace(
        context,
        wheel_set=replace(
            context.wheel_set,
            files={**context.wheel_set.files, ROCM_MANIFEST: sha256},
            file_sizes={**context.wheel_set.file_sizes, ROCM_MANIFEST: 1},
        ),
    )


@pytest.mark.parametrize(("weak", "kind"), [(False, FROM_MANIFEST), (True, FROM_NEEDS)])
def test_rocm_libraries_use_manifest_of_set(
    tmp_path: Path, index: Path, weak: bool, kind: str
) -> None:
    data = dump_manifest(replace(MANIFEST, weak=weak))
    context = room_with(tmp_path, index, data, hashlib.sha256(data).hexdigest())
    rocm = rocm_libraries(context, site_in(tmp_path), None)
    assert (rocm.kind, rocm.weak) == (kind, weak)
    lib = Path(rocm.env["ROCM_PATH"], "lib")
    assert [path.name for path in lib.iterdir()] == [HIP.soname]
    assert rocm.env == {
        "ROCM_PATH": str(lib.parent),
        "LD_LIBRARY_PATH": str(lib),
        "LD_BIND_NOW": "1",
    }


def test_changed_or_damaged_manifest_is_refused(tmp_path: Path, index: Path) -> None:
    context = room_with(tmp_path, index, b"{", hashlib.sha256(b"{").hexdigest())
    with pytest.raises(FormatError, match="is not JSON"):
        rocm_libraries(context, site_in(tmp_path), None)
    (check,) = load_gate.make_gate().run(context)
    assert [finding.code for finding in check.findings] == ["site-failed"]
    files = {**context.wheel_set.files, ROCM_MANIFEST: "0" * 64}
    changed = replace(context, wheel_set=replace(context.wheel_set, files=files))
    with pytest.raises(GateError, match=f"The staged {ROCM_MANIFEST} has sha256"):
        rocm_libraries(changed, site_in(tmp_path), None)


def tree_of(folder: Path, *paths: str) -> RocmTree:
    rows = {
        Path(path).name: RocmLibrary(soname=Path(path).name, path=path, symbols={})
        for path in paths
    }
    return RocmTree(
        folder=folder, manifest=RocmManifest(rocm_version="7.2.0", libraries=rows)
    )


def test_real_tree_overrides_manifest(tmp_path: Path, index: Path) -> None:
    context = room_with(tmp_path, index, dump_manifest(MANIFEST), "0" * 64)
    real = tree_of(
        tmp_path,
        "lib/x86_64-linux-gnu/librccl.so.1",
        "lib/rocm_sysdeps/lib/librocm_sysdeps_numa.so.1",
        "lib/libamdhip64.so.7",
        "lib/librocblas.so.5",
    )
    rocm = rocm_libraries(context, site_in(tmp_path), real)
    assert rocm.kind == TREE
    assert rocm.weak is False
    assert rocm.env["ROCM_PATH"] == str(tmp_path)
    lib = tmp_path / "lib"
    assert (
        rocm.env["LD_LIBRARY_PATH"]
        == f"{lib}:{lib}/x86_64-linux-gnu:{lib}/rocm_sysdeps/lib"
    )
    without_hip = tree_of(tmp_path, "lib/librocblas.so.5")
    with pytest.raises(GateError, match=r"has no libamdhip64\.so"):
        rocm_libraries(context, site_in(tmp_path), without_hip)


_DUMPABLE = """
import ctypes
from ci_build.cli.options.environment import child_environment
child_environment()
print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))
"""


@pytest.mark.parametrize("name", ["CI_BUILD_SIGNING_KEY", "AWS_SECRET_ACCESS_KEY", ""])
def test_children_cannot_read_credentials_of_parent(name: str) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ["HOME"],
        **({name: "secret"} if name else {}),
    }
    done = subprocess.run(
        [sys.executable, "-c", _DUMPABLE],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ("0\n" if name else "1\n")


def test_processes_of_site_get_no_credentials(tmp_path: Path) -> None:
    names = (
        "AWS_SECRET_ACCESS_KEY",
        "AWS_PROFILE",
        "AWS_REGION",
        "GITHUB_TOKEN",
        "GH_TOKEN",
        "CI_JOB_TOKEN",
    )
    runner = HostRunner(dict.fromkeys(names, "secret"))
    staged = stage_wheels(tmp_path, make_wheels(tmp_path / "w", pythons=(OWN,)))
    site = site_for(gate_context(tmp_path, *staged, runner), OWN)
    show = (
        "import os; print(*sorted(name for name, value in os.environ.items() if value"
        " == 'secret'))"
    )
    assert (
        runner.run([sys.executable, "-I", "-c", show], env=site.env).stdout
        == "AWS_REGION\n"
    )
