"""Inspection of a wheel: its contents, its defects, and their remedies.

`inspect_wheel` reports defects of a wheel, even damage, as findings, and its report
covers everything readable. Each library is inflated once, into a scratch folder, while
RECORD is checked, unless the caller has it already.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Protocol

from core.digests import sha256_of
from core.errors import ArchiveError, CiBuildError
from core.frozen import frozen
from core.model import Finding, GfxTarget, Progress
from core.units import human
from wheelkit import kernel_wheel
from wheelkit.archive.filename import WheelName
from wheelkit.archive.record_check import verify_record
from wheelkit.archive.wheel_archive import WheelArchive
from wheelkit.elf.constants import ELF64_LITTLE
from wheelkit.elf.elf_tables import open_image
from wheelkit.elf.hardening import load_defects
from wheelkit.elf.snapshot import Elf
from wheelkit.findings import finding, sort_findings
from wheelkit.gpu.code_object import HEAD_SIZE, processor_of
from wheelkit.gpu.fatbin import DeviceCode, FatbinReport, TargetCode, read_targets
from wheelkit.inspect import contents, library, parts
from wheelkit.inspect import metadata_rules as metadata
from wheelkit.inspect.inspection_model import (
    ElfFacts,
    PlatformSupport,
    WheelReport,
)
from wheelkit.inspect.metadata_rules import read_metadata
from wheelkit.inspect.platform_rules import ROCM_SONAME, check_platform

_LIBRARY = re.compile(r".*\.so(\.[0-9]+)*")
_NO_LIBRARY = re.compile(
    r".*\.(py|pyi|txt|md|rst|h|hpp|json|html|css|js|typed|o|a|csv|toml|xml|png|svg)"
)
"""Names of members that are not libraries; for all others the first bytes decide."""


class Libraries(Protocol):
    """Unpacked libraries that the caller keeps, in the file system of the scratch folder."""

    def unpack(self, archive: WheelArchive, name: str) -> Path:
        """Return the file with a member; raise ArchiveError if the member is damaged."""

    def device_code(self, archive: WheelArchive, name: str) -> FatbinReport:
        """Return the verified device code of a library."""


@frozen
class Expectations:
    """Expected properties of a wheel.

    Attributes:
        targets: exact gfx targets of its device code; None skips the check.
        allowed_sonames: exact sonames that may be missing from wheel and platform; None
            allows the libraries of ROCm.
        verify: check RECORD and the MD5 of device code; if False, only the parts that
            the report needs are read.
        integrity: look only for damaged or wrong bytes: do not check the platform and
            the syntax of Python files, which take two seconds for jaxlib.
    """

    targets: tuple[GfxTarget, ...] | None = None
    allowed_sonames: Collection[str] | None = None
    verify: bool = True
    integrity: bool = False


def inspect_wheel(
    path: Path,
    expectations: Expectations = Expectations(),
    *,
    scratch: Path | None = None,
    progress: Progress | None = None,
    sha256: str = "",
    libraries: Libraries | None = None,
) -> WheelReport:
    """Inspect any wheel and return a report.

    Args:
        scratch: folder with room for the unpacked libraries, which are removed at the
            end.
        sha256: digest of the file, if the caller has computed it.
        libraries: the unpacked libraries, if the caller keeps them; for expectations
            with `verify`.

    Raises:
        OSError: the file cannot be read at all, or the scratch folder is full.
    """
    if progress:
        progress.step(f"inspect {path.name}")
    report = _identity(path, sha256 or sha256_of(path), verify=expectations.verify)
    try:
        with (
            WheelArchive(path) as archive,
            tempfile.TemporaryDirectory(prefix="inspect-", dir=scratch) as root,
        ):
            inspection = _Inspection(
                archive=archive,
                root=Path(root).resolve(),
                expectations=expectations,
                progress=progress,
                shared=libraries,
            )
            return inspection.complete(report)
    except ArchiveError as error:
        head, *problems = error.message.split("\n  - ")
        texts = map(str.strip, problems or [head])
        findings = sort_findings(finding("archive-damaged", text) for text in texts)
        return replace(report, findings=findings)


def _identity(path: Path, sha256: str, *, verify: bool) -> WheelReport:
    """Return a report with the facts that do not need an open archive."""
    report = WheelReport(
        filename=path.name,
        size=path.stat().st_size,
        sha256=sha256,
        verified=verify,
    )
    try:
        name = WheelName.parse(path.name)
    except ArchiveError:
        return report
    return replace(
        report,
        project=name.canonical,
        version=name.version,
        build=name.build,
        tags=tuple(sorted(name.tags)),
    )


@dataclass(kw_only=True, slots=True)
class _Inspection:
    """Inspection of one open archive; `root` receives its libraries, laid out as in the wheel."""

    archive: WheelArchive
    root: Path
    expectations: Expectations
    progress: Progress | None
    shared: Libraries | None
    findings: list[Finding] = field(default_factory=list)
    elves: dict[str, Elf] = field(default_factory=dict)

    def complete(self, report: WheelReport) -> WheelReport:
        """Read everything and apply every rule."""
        # Libraries are laid out as in the wheel, so that $ORIGIN finds siblings.
        libraries = {name: self.root / name for name in self._libraries()}
        for path in libraries.values():
            path.parent.mkdir(parents=True, exist_ok=True)
        digests = self._unpack(libraries)
        meta, problems = read_metadata(self.archive)
        self.findings += problems
        elfs = []
        for name, digest in digests.items():
            facts = self._elf(name, libraries[name], digest)
            if facts:
                elfs.append(facts)
        host = [elf for elf in elfs if elf.machine != "amdgpu"]
        files = {elf.path: libraries[elf.path] for elf in host}
        platforms = self.archive.name.platform.split(".")
        elves = {name: self.elves[name] for name in files}
        platform: PlatformSupport | None = None
        if not self.expectations.integrity:
            platform, problems = check_platform(
                host, files, platforms, self.expectations.allowed_sonames, elves
            )
            self.findings += problems
        rocm = library.rocm_versions(elfs)
        modes = {member.name: member.mode for member in self.archive.members}
        names = [*modes]
        dist_info = f"{self.archive.dist_info}/"
        self.findings += [
            *metadata.check_identity(meta, report.project, report.version, report.tags),
            *metadata.check_description(meta, rocm, has_elf=bool(libraries)),
            *metadata.check_versions(meta),
            *metadata.check_requirements(meta),
            *metadata.check_entry_points(meta, names),
            *contents.check_places(
                report.project,
                [name for name in names if not name.startswith(dist_info)],
            ),
            *contents.check_modes(modes),
            *self._library_rules(
                host, report.project, whole=len(elfs) == len(libraries)
            ),
        ]
        if self.expectations.verify and not self.expectations.integrity:
            self.findings += contents.check_python(
                self.archive, names, meta.requires_python
            )
        if report.size > metadata.SIZE_BUDGET:
            text = (
                f"the wheel has {human(report.size)}; the budget is"
                f" {human(metadata.SIZE_BUDGET)}."
            )
            self._report("size-budget", text)
        if kernel_wheel.is_kernel_wheel(self.archive):
            exported = {elf.path: elf.exported for elf in host}
            self.findings += kernel_wheel.check_kernel_wheel(self.archive, exported)
        return replace(
            report,
            files=len(names),
            metadata=meta,
            platform=platform,
            rocm=rocm,
            parts=self._parts(elfs),
            targets=_sum_targets(elfs),
            elfs=tuple(elfs),
            findings=sort_findings(self.findings),
        )

    def _libraries(self) -> list[str]:
        """Return the members that begin like a supported ELF file."""
        names = []
        for member in self.archive.members:
            if _NO_LIBRARY.fullmatch(member.name):
                continue
            try:
                head = self.archive.head(member.name)
            except ArchiveError:
                continue  # reported by the check of RECORD or by the extraction
            if head.startswith(ELF64_LITTLE):
                names.append(member.name)
            elif _LIBRARY.fullmatch(member.name):
                text = (
                    f"the file has {member.size} bytes, but no header of a 64-bit"
                    " little-endian ELF file."
                )
                self._report("library-not-elf", text, member.name)
        return names

    def _unpack(self, libraries: Mapping[str, Path]) -> dict[str, str]:
        """Write the libraries to disk, check RECORD, and return name -> SHA-256."""
        digests = {}
        damage = {}
        for name, path in libraries.items():
            try:
                if self.shared is None:
                    digests[name] = self.archive.extract(
                        name, path, progress=self.progress
                    )
                else:
                    path.hardlink_to(self.shared.unpack(self.archive, name))
                    digests[name] = sha256_of(path)
            except ArchiveError as error:
                damage[name] = error.message
        if self.expectations.verify:
            self.findings += verify_record(
                self.archive, digests=digests, progress=self.progress
            )
        reported = {f.member for f in self.findings if f.code == "member-damaged"}
        for name in damage.keys() - reported:
            self._report("member-damaged", damage[name], name)
        return digests

    def _report(self, code: str, text: str, member: str = "") -> None:
        self.findings.append(finding(code, text, member=member))

    def _elf(self, name: str, path: Path, sha256: str) -> ElfFacts | None:
        try:
            elf = self.elves[name] = Elf.read(path)
            with open_image(path) as image:
                defects = tuple(load_defects(image))
            if self.shared is None:
                code = read_targets(path, verify=self.expectations.verify, name=name)
            else:
                code = self.shared.device_code(self.archive, name)
        except CiBuildError as error:
            self._report("elf-unreadable", error.message, name)
            return None
        self.findings += code.entry_findings
        for kind, text in defects:
            self._report(kind, f"the library {text}.", name)
        device = code.device
        if elf.machine == "amdgpu":
            # The file is itself a code object, without a bundle.
            with path.open("rb") as file:
                target = processor_of(file.read(HEAD_SIZE))
            code_of = TargetCode(target=target, code_bytes=elf.size, bundles=0)
            device = DeviceCode(targets=(code_of,) if target else ())
        return library.library_facts(name, elf, device, sha256)

    def _library_rules(
        self, elfs: Sequence[ElfFacts], project: str, *, whole: bool
    ) -> Iterator[Finding]:
        pythons = self.archive.name.python.split(".")
        abis = self.archive.name.abi.split(".")
        for elf in elfs:
            yield from library.check_library(elf, pythons, abis)
        expected = self.expectations.targets
        is_jax = metadata.JAX_ROCM.fullmatch(project)
        needed = chain.from_iterable(elf.needed for elf in elfs)
        uses_rocm = is_jax or any(ROCM_SONAME.fullmatch(soname) for soname in needed)
        if expected is not None and uses_rocm:
            yield from library.check_device_code(elfs, expected, whole=whole)
        if is_jax:
            yield from library.check_exports(
                elfs, plugin=whole and project.endswith("-pjrt")
            )
            yield from library.check_runtime_targets(
                elfs, promised=expected is not None
            )

    def _parts(self, elfs: Sequence[ElfFacts]) -> Mapping[str, int]:
        total = Counter[str]()
        for elf in elfs:
            total.update(elf.sections)
        libraries = {elf.path for elf in elfs}
        for member in self.archive.members:
            if member.name not in libraries:
                total[parts.part_of_file(member.name)] += member.size
        return dict(total.most_common())


def _sum_targets(elfs: Sequence[ElfFacts]) -> tuple[TargetCode, ...]:
    sizes = Counter[str]()
    bundles = Counter[str]()
    for code in chain.from_iterable(elf.device.targets for elf in elfs):
        sizes[code.target] += code.code_bytes
        bundles[code.target] += code.bundles
    return tuple(
        TargetCode(target=name, code_bytes=sizes[name], bundles=bundles[name])
        for name in sorted(sizes, key=library.target_order)
    )
