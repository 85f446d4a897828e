"""Edits of one library in place.

Device code, RUNPATH, NEEDED and symbols, and the byte ranges that they change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from core.errors import CiBuildError, RepairError
from core.frozen import frozen
from core.model import MemberInfo
from core.rocm_releases import rocm_of_compiler
from wheelkit.archive.output_file import ByteRange
from wheelkit.elf.runpath import add_needed, set_runpath
from wheelkit.elf.snapshot import Elf
from wheelkit.elf.strip import strip_symbols
from wheelkit.gpu.fatbin import read_targets
from wheelkit.gpu.slim import SlimReport, slim
from wheelkit.repair.repair_plan import RepairPlan


@frozen
class MemberEdit:
    """Result of editing one library.

    Attributes:
        name: path inside the new wheel.
        path: the edited file.
        elf: snapshot after the edits.
        changed: whether the library differs from the original.
        code: result of slimming the device code; all zero if the library has none.
        symbols_saved: bytes of the removed symbol tables.
        debug: debug file with the removed symbols; None if there is none.
    """

    name: str
    path: Path
    elf: Elf
    changed: bool
    code: SlimReport
    symbols_saved: int
    debug: Path | None

    def info(self, sha256: str | None) -> MemberInfo:
        """Return the MemberInfo of the library, given its SHA-256."""
        assert sha256 is not None
        return MemberInfo(
            path=self.name,
            size=self.elf.size,
            sha256=sha256,
            targets=self.code.targets_kept,
            needed=self.elf.needed,
            symbol_versions=self.elf.highest_versions(),
        )


def edit_members(
    files: Mapping[str, Path], plan: RepairPlan, debug_dir: Path | None
) -> list[MemberEdit]:
    """Edit every library of a wheel.

    Args:
        files: path inside the new wheel -> extracted file, edited in place.
        debug_dir: receives `{member path}.debug` for each library that loses its
            symbols; None discards the symbols.

    Raises:
        CiBuildError: a library cannot be edited. The error has the class of the first
            problem; its message lists the problems of all libraries.
    """
    edits = []
    errors = []
    for name, path in files.items():
        try:
            edits.append(
                edit_member(name, path, plan, debug_dir and debug_dir / f"{name}.debug")
            )
        except CiBuildError as error:
            errors.append(error)
    if errors:
        raise type(errors[0])(
            " ".join(error.message for error in errors), hint=errors[0].hint
        ) from errors[0]
    problems = list(_misplaced_code(edits, plan.device_members))
    if problems:
        raise RepairError(
            " ".join(problems),
            hint="Correct the recipe's `device_members`, or use a complete wheel.",
        )
    return edits


def edit_member(
    name: str, path: Path, plan: RepairPlan, debug: Path | None
) -> MemberEdit:
    """Edit one library in place.

    Raises:
        ElfError: the library is damaged, or an edit would have to move bytes.
        FatbinError: the device code is damaged, or lacks a target of the plan.
        RepairError: the library was compiled with another ROCm, or no glob of the plan
            matches its RUNPATH.
    """
    before = Elf.read(path)
    _check_compiler(name, before, plan.rocm_version)
    code = _device_code(name, path, before, plan)
    changed = [*code.changed, *_loading(name, path, before, plan)]
    saved = 0
    if plan.strip:
        if debug is not None:
            debug.parent.mkdir(parents=True, exist_ok=True)
        report = strip_symbols(path, debug)
        changed += report.changed
        saved = report.bytes_saved
    after = Elf.read(path)
    return MemberEdit(
        name=name,
        path=path,
        elf=after,
        changed=bool(changed) or after.size != before.size,
        code=code,
        symbols_saved=saved,
        debug=debug if saved else None,
    )


def _check_compiler(name: str, elf: Elf, rocm: str) -> None:
    """Refuse a library if a compiler that .comment names belongs to another ROCm.

    An empty `rocm` accepts all.
    """
    other = [
        versions[0]
        for versions in map(rocm_of_compiler, elf.comments)
        if versions and rocm not in versions
    ]
    if not (rocm and other):
        return
    hint = "Use another release of the wheel."
    if other[0].partition(".")[0] == rocm.partition(".")[0]:
        hint = f"Use --rocm-version={other[0]} or another wheel."
    raise RepairError(
        f"{name} was compiled with ROCm {', '.join(other)}, not {rocm}.", hint=hint
    )


def _device_code(name: str, path: Path, elf: Elf, plan: RepairPlan) -> SlimReport:
    if ".hip_fatbin" not in elf.sections:
        return SlimReport()
    if plan.targets is None:
        report = read_targets(path, verify=plan.verify_bundles, name=name)
        if report.findings:
            raise RepairError(
                " ".join(f.message for f in report.findings),
                hint=report.findings[0].remedy,
            )
        stored = report.device.stored
        targets = tuple(sorted(code.target for code in report.device.targets))
        return SlimReport(
            targets_kept=targets, stored_before=stored, stored_after=stored
        )
    return slim(path, plan.targets, verify=plan.verify_bundles, name=name)


def _loading(name: str, path: Path, elf: Elf, plan: RepairPlan) -> list[ByteRange]:
    """Set RUNPATH, then add NEEDED: a shorter RUNPATH makes room for the soname."""
    changed: list[ByteRange] = []
    if plan.runpath and (elf.runpath or elf.rpath):
        runpath = next(
            (value for glob, value in plan.runpath.items() if fnmatchcase(name, glob)),
            None,
        )
        if runpath is None:
            raise RepairError(
                f"{name} has a RUNPATH, but no glob of the plan's `runpath` matches the library.",
                hint="Add a glob that matches the library to the recipe.",
            )
        if runpath != elf.runpath:
            changed += set_runpath(path, runpath)
    if plan.hip_soname and plan.hip_soname not in elf.needed and elf.hip_symbols:
        changed += add_needed(path, plan.hip_soname)
    return changed


def _misplaced_code(edits: Sequence[MemberEdit], globs: Sequence[str]) -> Iterator[str]:
    for glob in globs:
        if not any(fnmatchcase(edit.name, glob) for edit in edits):
            yield f"No library matches {glob} of `device_members`."
    for edit in edits:
        expected = any(fnmatchcase(edit.name, glob) for glob in globs)
        if expected and not edit.code.stored_before:
            yield f"{edit.name} has no device code."
        if edit.code.stored_before and not expected:
            yield f"{edit.name} has device code, but matches no glob of `device_members`."
