"""Repair of a published wheel: exact targets, stripped libraries, and a platform tag that is true.

Libraries are verified and edited in a hidden folder beside the output. After auditwheel
has checked the edited libraries, a single rename makes the wheel visible. Libraries are
never grafted.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from core.digests import sha256_of
from core.errors import ArchiveError, MachineError, RepairError
from core.model import Finding, MemberInfo, Progress, Severity, Wheel, to_json
from core.rocm_releases import base_version
from wheelkit import kernel_wheel
from wheelkit.archive.compression import compressor
from wheelkit.archive.filename import WheelName
from wheelkit.archive.record import RecordEntry
from wheelkit.archive.record_check import verify_record
from wheelkit.archive.rewrite import WheelRewrite
from wheelkit.archive.wheel_archive import WheelArchive
from wheelkit.elf.constants import MAGIC
from wheelkit.elf.snapshot import Elf
from wheelkit.inspect.metadata_rules import rocm_in_summary
from wheelkit.repair.member import MemberEdit, edit_members
from wheelkit.repair.metadata import (
    LICENSE_FILE,
    render_entry_points,
    rewrite_metadata,
    rewrite_wheel,
)
from wheelkit.repair.platform_tags import (
    AUTO,
    NEWEST_PLATFORM,
    PLATFORM,
    higher_platform,
)
from wheelkit.repair.repair_plan import RepairPlan, RepairResult

if TYPE_CHECKING:  # start-up time: it loads auditwheel
    from wheelkit.inspect.platform_rules import PlatformVerdict

_PLATFORM_RULES = "wheelkit.inspect.platform_rules"


def repair(
    source: Path,
    plan: RepairPlan,
    out_dir: Path,
    *,
    source_sha256: str = "",
    debug_dir: Path | None = None,
    progress: Progress | None = None,
) -> RepairResult:
    """Write a repaired copy of `source` to `out_dir`.

    Its name has the plan's version and platform tag.

    Output is reproducible on every machine.

    Args:
        source: wheel to repair; it is only read.
        out_dir: existing folder with room for the unpacked libraries.
        source_sha256: digest of `source`; empty computes it.
        debug_dir: receives `{wheel's stem}/{member}.debug` for each library that loses
            its symbols; None discards them.

    Raises:
        MachineError: a folder is missing, full or read-only.
        ArchiveError: the source is damaged, or does not match its RECORD.
        ElfError, FatbinError: a library cannot be edited, or lacks code for a target.
        RepairError: the libraries do not run on the platform, or the wheel does not
            match the plan. The message lists all reasons, and neither a wheel nor debug
            files are left behind.
    """
    with (
        WheelArchive(source) as archive,
        _scratch(out_dir) as scratch,
        ThreadPoolExecutor(2) as pool,
    ):
        try:
            version = str(Version(plan.version))
        except InvalidVersion as error:
            raise RepairError(
                f"{plan.version!r} is not a version (PEP 440)."
            ) from error
        name = archive.name._replace(version=version, build="")
        rewrite = WheelRewrite(archive)
        renamed = _rename_folders(rewrite, archive, name)
        _rewrite_texts(rewrite, archive, name, plan)
        # auditwheel is loaded while the libraries are unpacked.
        pool.submit(import_module, _PLATFORM_RULES)
        _say(progress, f"verify and unpack {source.name}")
        codes = kernel_wheel.code_objects(archive)
        libraries = {
            old: new
            for old, new in renamed.items()
            if new not in plan.files and old not in codes and _is_elf(archive, old)
        }
        files = _unpack(archive, libraries, scratch / "tree", progress)
        _expect_members(files, plan, source.name)
        libraries_of = "1 library" if len(files) == 1 else f"{len(files)} libraries"
        _say(progress, f"edit {libraries_of} of {name.project}")
        edits = edit_members(files, plan, scratch / "debug" if debug_dir else None)
        _check_summary(archive, plan.rocm_version, edits)
        elves = {edit.name: edit.elf for edit in edits}
        platform, findings = _check_libraries(
            files, plan.allowed_sonames, source.name, plan.platform, elves
        )
        name = name._replace(platform=platform)
        _set_tags(rewrite, archive, name)
        for edit in edits:
            if edit.changed:
                rewrite.set(edit.name, edit.path)

        def build_info(record: Mapping[str, RecordEntry]) -> bytes:
            members = to_json(_infos(edits, record))
            info = {**plan.build_info, "compression": compressor(), "members": members}
            text = json.dumps(info, indent=2, sort_keys=True, ensure_ascii=False)
            return f"{text}\n".encode()

        if plan.build_info_path:
            rewrite.set(plan.build_info_path, build_info)
        _say(progress, f"write {name}")
        final = out_dir / str(name)
        written = rewrite.write(scratch / final.name)
        # In parallel, since removing the tree takes as long as the digest.
        pool.submit(shutil.rmtree, scratch / "tree")
        members = _infos(edits, written.record)
        sha256 = written.sha256
        members += kernel_wheel.member_infos(archive, codes, archive.record())
        debug_files = _publish_debug(edits, debug_dir, final.stem)
        written.path.replace(final)
        wheel = wheel_record(
            final,
            sha256=sha256,
            members=members,
            source_sha256=source_sha256 or sha256_of(source),
            source_size=archive.size,
        )
        return RepairResult(
            path=final,
            wheel=wheel,
            targets_kept=_union(edit.code.targets_kept for edit in edits),
            targets_dropped=_union(edit.code.targets_dropped for edit in edits),
            code_before=sum(edit.code.stored_before for edit in edits),
            code_after=sum(edit.code.stored_after for edit in edits),
            symbols_saved=sum(edit.symbols_saved for edit in edits),
            findings=findings,
            debug_files=debug_files,
        )


def _union(names: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(sorted(set(chain.from_iterable(names))))


def wheel_record(
    path: Path,
    *,
    sha256: str,
    members: tuple[MemberInfo, ...],
    source_sha256: str,
    source_size: int,
) -> Wheel:
    """Return the record of a wheel in wheels.json.

    Args:
        sha256: digest of the wheel.
        members: its ELF files.
        source_sha256, source_size: digest and size of the input.
    """
    with WheelArchive(path) as archive:
        metadata = archive.headers("METADATA")
        return Wheel(
            filename=path.name,
            name=archive.name.canonical,
            version=str(metadata["Version"]),
            tags=archive.name.tags,
            size=archive.size,
            sha256=sha256,
            requires_python=str(metadata["Requires-Python"] or ""),
            requires_dist=tuple(map(str, metadata.get_all("Requires-Dist", []))),
            members=members,
            source_sha256=source_sha256,
            source_size=source_size,
        )


def retag(
    source: Path,
    out_dir: Path,
    *,
    platform: str = AUTO,
    progress: Progress | None = None,
) -> tuple[Path, tuple[Finding, ...]]:
    """Write a copy of a wheel with the repaired platform tag, if auditwheel confirms it.

    All members except WHEEL and RECORD keep their content.

    Args:
        platform: see `RepairPlan`.

    Returns:
        The path of the new wheel, and the warnings and notes on its libraries.

    Raises:
        ArchiveError: the source is damaged, or does not match its RECORD.
        RepairError: a library needs more than the platform provides; nothing is
            written.
    """
    with WheelArchive(source) as archive, _scratch(out_dir) as scratch:
        files = _unpack_libraries(archive, scratch, progress)
        chosen, findings = _check_libraries(files, frozenset(), source.name, platform)
        name = archive.name._replace(platform=chosen)
        rewrite = WheelRewrite(archive)
        _set_tags(rewrite, archive, name)
        written = rewrite.write(scratch / str(name))
        return written.path.replace(out_dir / str(name)), findings


def repaired_platform(
    source: Path, scratch: Path, *, platform: str, allowed_sonames: frozenset[str]
) -> str:
    """Return the platform tag of a repaired wheel, from the libraries of its source.

    Args:
        scratch: existing folder with room for the unpacked libraries.
        platform, allowed_sonames: see `RepairPlan`.

    Raises:
        ArchiveError: the source is damaged, or does not match its RECORD.
        RepairError: a library needs more than the platform provides.
    """
    with WheelArchive(source) as archive, _scratch(scratch) as folder:
        files = _unpack_libraries(archive, folder, None)
        return _check_libraries(files, allowed_sonames, source.name, platform)[0]


def _unpack_libraries(
    archive: WheelArchive, scratch: Path, progress: Progress | None
) -> dict[str, Path]:
    libraries = {
        member.name: member.name
        for member in archive.members
        if _is_elf(archive, member.name)
    }
    return _unpack(archive, libraries, scratch / "tree", progress)


def _set_tags(rewrite: WheelRewrite, archive: WheelArchive, name: WheelName) -> None:
    """Write the tags of a wheel's new name into WHEEL."""
    wheel = rewrite_wheel(
        archive.read(f"{archive.dist_info}/WHEEL"), tags=name.tags, build=name.build
    )
    rewrite.set(f"{name.project}-{name.version}.dist-info/WHEEL", wheel)


def _check_summary(
    archive: WheelArchive, rocm: str, edits: Sequence[MemberEdit]
) -> None:
    """Refuse a wheel whose Summary names another ROCm, unless the plan's is proved."""
    claimed = rocm_in_summary(str(archive.headers("METADATA").get("Summary", "")))
    proven = any(edit.elf.rocm_versions for edit in edits)
    if rocm and claimed and not proven and base_version(claimed) != Version(rocm):
        raise RepairError(
            f"{archive.path.name}: Summary names ROCm {claimed}, not {rocm}, and no"
            f" known compiler proves {rocm}.",
            hint=f"Use --rocm-version={claimed} or another wheel.",
        )


@contextmanager
def _scratch(out_dir: Path) -> Iterator[Path]:
    try:
        with tempfile.TemporaryDirectory(prefix=".repair-", dir=out_dir) as folder:
            yield Path(folder)
    except OSError as error:
        raise MachineError(
            f"Cannot use {out_dir}: {error.strerror} ({error.filename}).",
            hint=(
                "Choose a folder with room for the unpacked libraries, 1 GB for the"
                " pjrt wheel."
            ),
        ) from error


def _say(progress: Progress | None, text: str) -> None:
    if progress is not None:
        progress.step(text)


def _rename_folders(
    rewrite: WheelRewrite, archive: WheelArchive, name: WheelName
) -> dict[str, str]:
    """Rename .dist-info and .data for the new version.

    Return old member name -> new member name.
    """
    stem = archive.dist_info.removesuffix(".dist-info")
    new_stem = f"{name.project}-{name.version}"
    folders = {f"{stem}.{kind}": f"{new_stem}.{kind}" for kind in ("dist-info", "data")}
    renamed = {}
    for member in archive.members:
        top, slash, rest = member.name.partition("/")
        renamed[member.name] = folders.get(top, top) + slash + rest
    for old, new in folders.items():
        rewrite.rename(old, new)
    return renamed


def _rewrite_texts(
    rewrite: WheelRewrite, archive: WheelArchive, name: WheelName, plan: RepairPlan
) -> None:
    """Set all members that do not depend on the libraries, so that an invalid plan fails early."""
    info = f"{name.project}-{name.version}.dist-info"
    rewrite.set(
        f"{info}/METADATA",
        rewrite_metadata(archive.read(f"{archive.dist_info}/METADATA"), plan),
    )
    rewrite.set(f"{info}/licenses/{LICENSE_FILE}", plan.license_text)
    if plan.entry_points is not None:
        rewrite.set(f"{info}/entry_points.txt", render_entry_points(plan.entry_points))
    for path, content in plan.files.items():
        if content.startswith(MAGIC):
            raise RepairError(
                f"Cannot add {path}: the plan's `files` must not contain libraries."
            )
        rewrite.set(path, content)


def _unpack(
    archive: WheelArchive,
    libraries: Mapping[str, str],
    tree: Path,
    progress: Progress | None,
) -> dict[str, Path]:
    """Check every member against RECORD and write the libraries to `tree`.

    Args:
        libraries: old member name -> new member name.

    Returns:
        New member name -> file.
    """
    files = {old: tree / new for old, new in libraries.items()}
    for path in files.values():
        path.parent.mkdir(parents=True, exist_ok=True)
    problems = verify_record(archive, extract=files, progress=progress)
    if problems:
        raise ArchiveError(
            f"{archive.path.name} does not match its RECORD:{_listed(problems)}",
            hint="Build or download the wheel again. Nothing was written.",
        )
    return {libraries[old]: path for old, path in files.items()}


def _is_elf(archive: WheelArchive, name: str) -> bool:
    try:
        return archive.head(name).startswith(MAGIC)
    except ArchiveError:
        return False  # verify_record reports the damage with all other problems


def _expect_members(files: Collection[str], plan: RepairPlan, source: str) -> None:
    missing = sorted(set(plan.members) - set(files))
    extra = sorted(set(files) - set(plan.members))
    problems = [f"lacks {name}" for name in missing]
    if plan.members:
        problems += [f"also contains {name}" for name in extra]
    if problems:
        raise RepairError(
            f"The libraries of {source} differ from the recipe's `members`: the wheel"
            f" {', '.join(problems)}.",
            hint="Use a complete wheel, or change the recipe's `members`.",
        )


def _check_libraries(
    files: Mapping[str, Path],
    allowed_sonames: frozenset[str],
    source: str,
    platform: str,
    elves: Mapping[str, Elf] | None = None,
) -> tuple[str, tuple[Finding, ...]]:
    """Return the platform tag of a new wheel, and auditwheel's warnings and notes."""
    # Start-up time: it loads auditwheel.
    from wheelkit.inspect.platform_rules import platform_verdict

    def judge(platform: str) -> PlatformVerdict:
        return platform_verdict(
            files, allowed_sonames=allowed_sonames, platform=platform, elves=elves
        )

    lowest = PLATFORM if platform == AUTO else platform
    judged = judge(lowest)
    has_tag = judged.policy.startswith("manylinux")
    true = judged.policy
    if platform == AUTO:
        lowest = higher_platform(PLATFORM, true) if has_tag else NEWEST_PLATFORM
        if lowest != PLATFORM:
            judged = judge(lowest)
    if not judged.ok:
        errors = [f for f in judged.findings if f.severity is Severity.ERROR]
        hint = "Correct the listed libraries; they are never grafted."
        if has_tag:
            hint = (
                f"Give --platform-tag={true.removesuffix('_x86_64')}, which is true, or"
                " build with the toolchain of an older system."
            )
        wanted = "manylinux" if platform == AUTO else platform
        raise RepairError(
            f"{source} cannot become a {wanted} wheel:{_listed(errors)}",
            hint=f"{hint} Nothing was written.",
        )
    return lowest, judged.findings


def _listed(findings: Iterable[Finding]) -> str:
    lines = [
        f"\n  - {f.member or 'wheel'} [{f.code}]: {f.message} {f.remedy}"
        for f in findings
    ]
    return "".join(lines) + "\n"


def _infos(
    edits: Iterable[MemberEdit], record: Mapping[str, RecordEntry]
) -> tuple[MemberInfo, ...]:
    return tuple(edit.info(record[edit.name].sha256) for edit in edits)


def _publish_debug(
    edits: Sequence[MemberEdit], debug_dir: Path | None, stem: str
) -> dict[str, Path]:
    """Move the debug files to `{debug_dir}/{stem}` with one rename.

    Replace the debug files of an earlier run.
    """
    debug_files = {edit.name: edit.debug for edit in edits if edit.debug is not None}
    if debug_dir is None:
        return {}
    debug_dir.mkdir(parents=True, exist_ok=True)
    final = debug_dir / stem
    with _scratch(debug_dir) as scratch:
        for name, path in debug_files.items():
            target = scratch / stem / f"{name}.debug"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(path, target)
        if final.exists():
            final.replace(scratch / "old")
        if debug_files:
            (scratch / stem).replace(final)
    return {name: final / f"{name}.debug" for name in debug_files}
