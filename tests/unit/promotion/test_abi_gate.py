"""The ABI gate on small staged sets.

The manifests that it uses, and sets that it accepts although they look faulty.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from core.model import Evidence, Outcome, Severity
from promotion.gates.abi.abi_gate import make_gate
from promotion.gates.common.gate_runs import run_gates
from promotion.stage import stage
from promotion.storage.directory_bucket import DirBucket
from tests.support.gating import stage_wheels
from tests.support.made_wheel import MadeWheel, library
from tests.support.silent import NoProcesses, Silent
from tests.support.tiny_elf import TinySymbol
from tests.support.wheel_sets import (
    PJRT_LIBRARY,
    TARGETS,
    make_set,
    make_wheels,
    set_wheel,
    write_set,
)
from tests.unit.gate_table.abi import (
    BLAS,
    BUILD_INFO,
    HIP,
    RUNPATH,
    USES,
    installed,
    native,
)
from wheelkit.rocm_manifest import ROCM_MANIFEST, RocmManifest, dump_manifest


def our_pjrt(content: bytes | None = None) -> MadeWheel:
    """Return a pjrt wheel of our own, with another library."""
    made = installed().made
    if content is not None:
        made.files[PJRT_LIBRARY] = content
    return made


def without(soname: str, **changes: Any) -> RocmManifest:
    """Return the ROCm of the wheel with one library changed."""
    one = installed()
    one.change(soname, **changes)
    assert one.manifest is not None
    return one.manifest


MANIFEST = without(HIP)
BROKEN = without(BLAS, symbols={})


def judge(
    folder: Path,
    made: MadeWheel,
    manifest: RocmManifest | None = MANIFEST,
    *,
    carried: RocmManifest | None = None,
    published: bool = False,
    rocm_version: str = "7.2.0",
) -> Evidence:
    """Stage a set with one library and run the gate on it; `carried` is the manifest in the set."""
    folder.mkdir(exist_ok=True)
    wheel = set_wheel(
        made, folder, {path: TARGETS for path in made.files if path.endswith(".so")}
    )
    if published:
        wheel = dataclasses.replace(
            wheel,
            wheel=dataclasses.replace(wheel.wheel, source_sha256=wheel.wheel.sha256),
        )
    wheel_set = make_set([wheel], python_versions=("3.12",), rocm_version=rocm_version)
    written = write_set(folder / "set", [wheel], wheel_set)
    if carried is not None:
        data = dump_manifest(carried)
        digest = hashlib.sha256(data).hexdigest()
        wheel_set = dataclasses.replace(
            wheel_set,
            files={**wheel_set.files, ROCM_MANIFEST: digest},
            file_sizes={**wheel_set.file_sizes, ROCM_MANIFEST: len(data)},
        )
        written = write_set(folder / "set", [wheel], wheel_set)
        (written / ROCM_MANIFEST).write_bytes(data)
        with (written / "SHA256SUMS").open("a") as file:
            file.write(f"{digest}  {ROCM_MANIFEST}\n")
    bucket = DirBucket(folder / "bucket")
    (evidence,) = run_gates(
        bucket, stage(bucket, written), [make_gate(manifest)], NoProcesses(), Silent()
    )
    return evidence


def found(evidence: Evidence, severity: Severity = Severity.ERROR) -> set[str]:
    return {
        finding.code for finding in evidence.findings if finding.severity is severity
    }


def checks(evidence: Evidence) -> dict[str, Mapping[str, Any]]:
    return {check["name"]: check for check in evidence.details["checks"]}


def test_manifest_of_set_is_used_unless_another_is_given(tmp_path: Path) -> None:
    assert found(judge(tmp_path / "broken", our_pjrt(), None, carried=BROKEN)) == {
        "symbol-missing"
    }
    assert (
        judge(tmp_path / "given", our_pjrt(), MANIFEST, carried=BROKEN).outcome
        is Outcome.PASSED
    )
    told = [
        make_gate(manifest).settings["manifest"]
        for manifest in (None, MANIFEST, BROKEN)
    ]
    assert len({*told}) == 3


def test_all_wheels_are_checked(tmp_path: Path) -> None:
    wheels = make_wheels(tmp_path / "w", pythons=("3.11", "3.12"))
    (evidence,) = run_gates(
        *stage_wheels(tmp_path, wheels), [make_gate(MANIFEST)], NoProcesses(), Silent()
    )
    names = {name for name in checks(evidence) if name.endswith(": ROCm 7.2.0")}
    assert {name.partition(":")[0] for name in names} == {
        wheel.wheel.filename for wheel in wheels if wheel.wheel.members
    }
    assert sum(name.startswith("layout ") for name in checks(evidence)) == 2 * 6
    assert evidence.outcome is Outcome.PASSED, found(evidence)


def test_adopted_set_without_manifest_of_its_rocm_is_a_warning(tmp_path: Path) -> None:
    made = our_pjrt(native(TinySymbol("nowhere"), needed=(HIP,)))
    evidence = judge(tmp_path, made, None, rocm_version="7.3.0", published=True)
    assert evidence.counts["skipped"] == 1
    assert found(evidence) == set()


@pytest.mark.parametrize("adopted", [False, True])
def test_set_without_manifest_is_compared_with_shipped_one(
    tmp_path: Path, adopted: bool
) -> None:
    """The symbols that published wheels need are those of the ROCm.

    Wheels of others may need more.
    """
    evidence = judge(
        tmp_path,
        our_pjrt(native(TinySymbol("hipGetErrorStrinX"), needed=(HIP,))),
        None,
        rocm_version="7.2.4",
        published=adopted,
    )
    assert "symbol-missing" in found(
        evidence, Severity.WARNING if adopted else Severity.ERROR
    )
    good = our_pjrt(native(TinySymbol("hipGetErrorString"), needed=(HIP,)))
    assert (
        found(
            judge(
                tmp_path / "good", good, None, rocm_version="7.2.4", published=adopted
            )
        )
        == set()
    )


def test_foreign_build_info_is_ignored(tmp_path: Path) -> None:
    made = our_pjrt()
    made.files[BUILD_INFO] = b'{"rocm_sonames": 1}'
    failed = {
        name
        for name, check in checks(judge(tmp_path, made)).items()
        if check["outcome"] == "failed"
    }
    assert failed == {"layout prefix, Python 3.12", "layout tarball, Python 3.12"}


def test_library_of_wheel_may_provide_symbols(tmp_path: Path) -> None:
    needed = (HIP, BLAS, "libown.so")
    made = our_pjrt(
        native(
            *USES, TinySymbol("own_call"), needed=needed, runpath=f"{RUNPATH}:$ORIGIN"
        )
    )
    made.files["jax_plugins/xla_rocm7/libown.so"] = library(
        TinySymbol("own_call", defined=True), entry=()
    )
    evidence = judge(tmp_path, made)
    assert found(evidence) == set()


def test_adopted_wheel_has_errors_for_load_failures_only(tmp_path: Path) -> None:
    made = our_pjrt(native(runpath="$ORIGIN/../_solib_x86_64/x"))
    del made.files[BUILD_INFO]
    mild = judge(tmp_path / "mild", made, published=True)
    assert mild.outcome is Outcome.PASSED
    assert mild.findings == ()
    assert found(judge(tmp_path / "hard", made, BROKEN, published=True)) == {
        "symbol-missing"
    }
