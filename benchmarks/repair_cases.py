"""Cases of wheelkit in `benchmarks.repair`, which runs each case in a child process.

Usage: python -m benchmarks.repair_cases CASE WHEEL FOLDER.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from wheelkit.archive.rewrite import WheelRewrite
from wheelkit.archive.wheel_archive import WheelArchive

if TYPE_CHECKING:
    from wheelkit.repair.repair_plan import RepairPlan

# Each case imports only the modules that it needs, as a separate program would.

PLATFORM = "manylinux_2_28_x86_64"
TARGETS = ("gfx942", "gfx950")


def _library(archive: WheelArchive) -> str:
    return max(archive.members, key=lambda member: member.size).name


def _renamed(archive: WheelArchive, folder: Path) -> Path:
    return folder / str(archive.name._replace(platform=PLATFORM))


def _retag(archive: WheelArchive, rewrite: WheelRewrite) -> None:
    path = f"{archive.dist_info}/WHEEL"
    lines = [
        line
        for line in archive.read(path).decode().splitlines()
        if line and not line.startswith("Tag:")
    ]
    tags = archive.name._replace(platform=PLATFORM).tags
    rewrite.set(
        path,
        "".join(
            f"{line}\n" for line in [*lines, *(f"Tag: {tag}" for tag in tags)]
        ).encode(),
    )


def verified(wheel: Path, folder: Path) -> None:
    """Change tag and metadata.

    Check every member against CRC and RECORD, and unpack the library.
    """
    with WheelArchive(wheel) as archive:
        _verify(archive, folder / "library.so")
        rewrite = WheelRewrite(archive)
        _retag(archive, rewrite)
        path = f"{archive.dist_info}/METADATA"
        rewrite.set(
            path, archive.read(path).replace(b"Summary: ", b"Summary: repaired ", 1)
        )
        rewrite.write(_renamed(archive, folder))


def _verify(archive: WheelArchive, library: Path) -> None:
    from wheelkit.archive.record_check import verify_record

    problems = verify_record(archive, extract={_library(archive): library})
    if problems:
        raise SystemExit(problems[0].message)


def strip(wheel: Path, folder: Path) -> None:
    """Run `set repair` with only the work of unpack, strip, patchelf and pack.

    Do not read the fat binaries.
    """
    _repair(wheel, replace(_plan(wheel), verify_bundles=False), folder)


def full(wheel: Path, folder: Path) -> None:
    """Run `set repair` with the recipe's plan, and discard symbols like the stock chain.

    The device code in the library is not verified, as if an earlier build had verified
    it.
    """
    _repair(wheel, replace(_plan(wheel, *TARGETS), verify_bundles=False), folder)


def full_first(wheel: Path, folder: Path) -> None:
    """Run `set repair` as in the first build of an input.

    Keep symbols and compare the MD5 of every old bundle.
    """
    _repair(wheel, _plan(wheel, *TARGETS), folder, debug_dir=folder / "debug")


def _repair(
    wheel: Path, plan: RepairPlan, folder: Path, debug_dir: Path | None = None
) -> None:
    from wheelkit.repair.wheel_repair import repair

    repair(wheel, plan, folder, debug_dir=debug_dir)


def _plan(wheel: Path, *targets: str) -> RepairPlan:
    from core import versions
    from core.model import BuildRequest, GfxTarget, Payload, RocmVersion
    from pjrt.jax_wheels import repair_plan
    from wheelkit.archive.filename import WheelName

    rocm = RocmVersion(text="7.2.0")
    version = WheelName.parse(wheel.name).version
    request = BuildRequest(
        payload=Payload.PUBLISHED,
        jax_version=version,
        rocm_version=rocm,
        python_versions=("3.12",),
        targets=tuple(map(GfxTarget.parse, targets)) or None,
    )
    return repair_plan("pjrt", request, versions.wheel_version(version, rocm=rocm))


CASES: dict[str, Callable[[Path, Path], None]] = {
    "verified": verified,
    "strip": strip,
    "full": full,
    "full-first": full_first,
}


def main() -> None:
    """Run one case."""
    case, wheel, folder = sys.argv[1:]
    CASES[case](Path(wheel), Path(folder))


if __name__ == "__main__":
    main()
