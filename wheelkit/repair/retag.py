"""A wheel re-tagged with the platform that its libraries support; nothing else changes."""

from __future__ import annotations

import tempfile
from pathlib import Path

from core.errors import ArchiveError, RepairError
from core.model import Finding, Progress, Severity
from wheelkit.archive.member_writer import EPOCH
from wheelkit.archive.reader import WheelArchive
from wheelkit.archive.rewrite import WheelRewrite
from wheelkit.archive.verify import verify_record
from wheelkit.elf.constants import MAGIC
from wheelkit.inspect.manylinux import platform_verdict
from wheelkit.repair.metadata import rewrite_wheel


def retag(
    source: Path, out_dir: Path, *, platform: str = "manylinux_2_28_x86_64", progress: Progress | None = None
) -> tuple[Path, tuple[Finding, ...]]:
    """Make a copy of a wheel in `out_dir` with another platform tag, if auditwheel confirms the tag.

    Returns:
        The wheel, and warnings and notes on its libraries.

    Raises:
        ArchiveError: the source is damaged, or does not match its RECORD.
        RepairError: its libraries need more than the platform has; nothing is written.
    """
    with WheelArchive(source) as archive, tempfile.TemporaryDirectory(prefix=".retag-", dir=out_dir) as folder:
        scratch = Path(folder)
        libraries = {
            member.name: scratch / "tree" / member.name
            for member in archive.members
            if next(archive.chunks(member.name), b"").startswith(MAGIC)
        }
        for path in libraries.values():
            path.parent.mkdir(parents=True, exist_ok=True)
        if problems := verify_record(archive, extract=libraries, progress=progress):
            listed = "; ".join(f"{item.member} {item.message}" for item in problems)
            raise ArchiveError(f"{source.name} does not match its RECORD: {listed}.", hint="Build it again.")
        if not libraries:
            raise RepairError(f"{source.name} holds no libraries, so {platform} cannot be true.")
        findings = platform_verdict(libraries, allowed_sonames=frozenset(), platform=platform).findings
        if errors := [item for item in findings if item.severity is Severity.ERROR]:
            listed = "; ".join(f"{item.member} [{item.code}]: {item.message}" for item in errors)
            raise RepairError(f"{source.name} cannot become a {platform} wheel: {listed}", hint="Nothing was written.")
        name = archive.name._replace(platform=platform)
        rewrite = WheelRewrite(archive, date_time=EPOCH)
        wheel = f"{archive.dist_info}/WHEEL"
        rewrite.set(wheel, rewrite_wheel(archive.read(wheel), tags=name.tags, build=name.build))
        written = rewrite.write(scratch / str(name))
        return written.path.replace(out_dir / str(name)), findings
