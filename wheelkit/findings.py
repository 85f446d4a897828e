"""Kinds of defects of a wheel: code -> severity, title, remedy.

A rule makes a `Finding` with `finding(code, …)`, which adds severity and remedy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from core.model import Finding, Severity

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE


@dataclass(frozen=True, kw_only=True, slots=True)
class FindingKind:
    """One kind of defect.

    Attributes:
        title: a few words, for tables.
        remedy: one line for the builder of the wheel.
        integrity: the bytes are damaged or wrong; such a finding stays an error in wheels that others published.
    """

    severity: Severity
    title: str
    remedy: str
    integrity: bool = False


def _broken(title: str, remedy: str) -> FindingKind:
    return FindingKind(severity=ERROR, title=title, remedy=remedy, integrity=True)


def _error(title: str, remedy: str) -> FindingKind:
    return FindingKind(severity=ERROR, title=title, remedy=remedy)


def _warning(title: str, remedy: str) -> FindingKind:
    return FindingKind(severity=WARNING, title=title, remedy=remedy)


def _note(title: str, remedy: str) -> FindingKind:
    return FindingKind(severity=NOTE, title=title, remedy=remedy)


_AGAIN = "Download the wheel again, or report it to its builder."
_RECORD = "Download the wheel again, or report it to its builder: pip may refuse it."
_PLATFORM = "Build with the toolchain of the platform in the tag."

FINDING_KINDS: Mapping[str, FindingKind] = MappingProxyType(
    {
        # Archive and RECORD.
        "archive-damaged": _broken(
            "archive damaged or unsafe", "Download it again. If it was built like this, write it in one strict pass."
        ),
        "member-damaged": _broken("file in the archive damaged", _AGAIN),
        "record-unreadable": _broken("RECORD cannot be read", _RECORD),
        "record-malformed": _broken("RECORD is malformed", _RECORD),
        "record-duplicate-entry": _broken("RECORD lists a file twice", _RECORD),
        "record-no-such-file": _broken("RECORD lists a file that is missing", _RECORD),
        "record-missing-entry": _broken("file is not in RECORD", _RECORD),
        "record-no-sha256": _broken("RECORD without a hash", _RECORD),
        "record-wrong-hash": _broken("content differs from RECORD", _RECORD),
        "record-wrong-size": _broken("size differs from RECORD", _RECORD),
        "mode-private": _warning("file mode hides it from others", "Write files as 0644 and libraries as 0755."),
        # Wheels of kernel modules.
        "kernels-manifest-damaged": _broken("manifest of the kernels cannot be read", _AGAIN),
        "kernels-manifest-untrue": _broken("kernel manifest does not match the files", _AGAIN),
        "kernels-missing": _broken("kernel module or file of one is missing", _AGAIN),
        "kernels-partial": _warning("kernel modules were left out", "Build it without --allow-partial."),
        "handler-missing": _broken("library without its FFI handler", "Build it again from whole sources."),
        # ELF files.
        "elf-unreadable": _broken("library cannot be read", "Build it again; the file is truncated or not a library."),
        "library-not-elf": _error("library that is no ELF file", "Build it again; nothing can load this file."),
        "elf-not-read": _note("library not inspected", "Only 64-bit little-endian ELF files are read."),
        "symbols-not-stripped": _warning(
            "symbol tables not stripped", "Move .symtab and .strtab into a debug file (`dist_wheels` does by default)."
        ),
        "runpath-build-leftover": _error(
            "RUNPATH names the build tree", "Rewrite RUNPATH to the documented install layouts (`dist_wheels` does)."
        ),
        "runpath-build-machine": _error(
            "RUNPATH names the build machine", "Rewrite RUNPATH to paths that start with $ORIGIN or /opt/rocm."
        ),
        "runpath-unsafe": _error(
            "RUNPATH depends on the current folder", "Remove empty and relative entries; start them with $ORIGIN."
        ),
        "runpath-excessive": _warning(
            "RUNPATH is very long", "Keep one entry for each install layout; each entry costs look-ups at every load."
        ),
        "rpath-used": _warning("RPATH instead of RUNPATH", "Link with --enable-new-dtags; RPATH overrides the user."),
        "hip-needed-missing": _warning(
            "HIP runtime not in NEEDED",
            "Link with -lamdhip64 (`dist_wheels` adds it); HIP may not be loaded yet.",
        ),
        "init-name-wrong": _error(
            "module cannot be imported", "Name the file after its PyInit_ function, or the other way round."
        ),
        "pjrt-api-missing": _error(
            "PJRT plugin without its entry point", "Export GetPjrtApi; jax looks it up by that name."
        ),
        "exports-unexpected": _error(
            "private symbols exported",
            "Link with a version script that exports the entry points only; others may clash.",
        ),
        # Device code.
        "bundle-damaged": _broken(
            "device code damaged", "Build or download it again; GPUs would get wrong or missing code."
        ),
        "code-object-wrong": _broken(
            "device code does not match its name", "Build it again; the code object is for another processor."
        ),
        "target-missing": _error("promised target without code", "Build with this target, or do not list it."),
        "target-extra": _error("target that was not requested", "Slim the wheel to its targets (`--targets`)."),
        "device-code-missing": _error("no device code at all", "Build with --offload-arch for every promised target."),
        "target-refused": _warning(
            "targets that XLA refuses", "Leave them out (`--targets`); XLA's run-time allow-list never uses them."
        ),
        "target-uncovered": _note("targets without code", "Add them if users of these GPUs should be served."),
        "bundles-uneven": _warning(
            "fat binaries differ in targets", "Compile every kernel for all targets, or document the exceptions."
        ),
        # Tags.
        "tag-mismatch": _error("file name and WHEEL disagree", "Write the same tags into both (`wheel tags` does)."),
        "tag-untrue": _error(
            "platform tag is not true", "Build against the older system, or use the tag that is true."
        ),
        "tag-unjudged": _note("platform tag not checked", "Use a platform tag that auditwheel has rules for."),
        "tag-by-exception": _note(
            "tag holds only with exceptions", "Keep the exceptions listed and documented; auditwheel alone says linux."
        ),
        "tag-too-new": _note("platform tag newer than needed", "An older tag would reach more systems."),
        "tag-redundant": _note(
            "platform tag implied by another", "Keep the lowest manylinux tag; it implies the others."
        ),
        # Policies of auditwheel and the table of libstdc++ (`manylinux`).
        "needed-not-allowed": _error(
            "needs a library outside the platform", "Link without it, or allow that exact soname if all users have it."
        ),
        "symbol-not-allowed": _error("uses private symbols", "Do not use private symbols of that library."),
        "symbol-version-too-new": _error("needs a newer system than the tag says", _PLATFORM),
        "unversioned-symbol-too-new": _error(
            "symbols that the platform lacks",
            "Build with that platform's toolchain; for std::filesystem, link libstdc++fs.a of GCC 8.",
        ),
        "unversioned-symbol-unknown": _error(
            "symbols of unknown origin", "Check that a library that it needs exports it, or link that code statically."
        ),
        "unversioned-symbol-optional": _note(
            "optional symbols without version", "Nothing to do, unless they should be present."
        ),
        "machine-foreign": _error(
            "library of another machine", "Build it for the machine in the tag, or leave it out."
        ),
        "isa-too-new": _error("needs newer processors than the tag says", "Build it for the machine in the tag."),
        "libc-foreign": _error("linked against another libc", "Build it against glibc."),
        "python-tag-wrong": _error("Python tag is not true", "Use the tag of the Python that it was built for."),
        "purelib-with-elf": _error("pure wheel with libraries in it", "Write `Root-Is-Purelib: false`."),
        # Metadata.
        "metadata-unreadable": _broken("METADATA or WHEEL cannot be read", "Write both as PEP 427 describes."),
        "metadata-mismatch": _error("file name and METADATA disagree", "Rename the wheel or rewrite METADATA."),
        "summary-rocm-unknown": _warning("Summary without ROCm version", "Write the ROCm version into Summary."),
        "summary-rocm-wrong": _warning("Summary names another ROCm", "Write the ROCm version that compiled the code."),
        "requires-python-missing": _warning("no Requires-Python", "Add Requires-Python, such as >=3.11."),
        "license-missing": _warning("no licence file", "Ship the licence in dist-info/licenses with License-File."),
        "version-unstamped": _warning("version.py is not stamped", "Write the version into _release_version."),
        "version-stale": _error("version.py has another version", "Rewrite _release_version together with METADATA."),
        "jaxlib-unpinned": _warning("no requirement on jaxlib", "Add the range of jaxlib whose PJRT API it fits."),
        "pin-missing": _warning("plugin without its pjrt", "Add Requires-Dist on the pjrt wheel, ==own version."),
        "pin-inexact": _warning("pjrt pin is loose", "Pin the pjrt wheel to exactly the plugin's own version."),
        "pin-stale": _error("pjrt pin excludes own version", "Rewrite the pin whenever the version is rewritten."),
        "extra-uninstallable": _warning("extra cannot be installed", "Name distributions that exist, or drop it."),
        "entry-point-missing": _error("JAX cannot discover it", "Add a `jax_plugins` entry point."),
        "entry-point-broken": _error("entry point leads nowhere", "Point it at a module that the wheel contains."),
        "size-budget": _warning("wheel above its size budget", "Strip, slim to fewer targets, or raise the limit."),
        # Several wheels.
        "set-duplicate": _error("two wheels for the same slot", "Keep one; which one pip and uv choose is undefined."),
        "set-wheel-missing": _error("wheel of the set is missing", "Copy the whole folder, or build the set again."),
        "set-wheel-differs": _error("wheel differs from the set", "Copy the folder unchanged, or build the set again."),
        "set-pin-unmet": _error("requirement not met in the set", "Put wheels that fit each other into one set."),
        "set-rocm-differs": _error("wheels of different ROCm", "Build plugin and pjrt with one ROCm."),
        "set-targets-differ": _warning("wheels of different targets", "Slim plugin and pjrt to the same targets."),
    }
)


UNINSTALLABLE = frozenset(
    f"amd-{name}-instinct"
    for name in (
        "hipblas",
        "hipfft",
        "hipsolver",
        "hipsparse",
        "hipsparselt",
        "miopen-hip",
        "rccl",
        "rocm-device-libs",
        "rocm-hip-runtime",
        "rocm-hip-runtime-devel",
        "rocm-language-runtime",
        "rocm-llvm",
    )
)
"""Normalized names of distributions that published extras require and that no index has."""


def finding(code: str, message: str, *, member: str = "") -> Finding:
    """Return a finding of a known kind; an unknown code raises KeyError."""
    rule = FINDING_KINDS[code]
    return Finding(code=code, severity=rule.severity, message=message, remedy=rule.remedy, member=member)


def is_integrity(item: Finding) -> bool:
    """Return whether a finding means damaged or wrong bytes."""
    return item.code in FINDING_KINDS and FINDING_KINDS[item.code].integrity


def as_published(items: Iterable[Finding]) -> Iterator[Finding]:
    """Yield findings on a wheel that others published: errors become warnings, except those about broken bytes."""
    for item in items:
        mild = item.severity is ERROR and not is_integrity(item)
        yield replace(item, severity=WARNING) if mild else item


_ORDER = {severity: position for position, severity in enumerate((ERROR, WARNING, NOTE))}


def sort_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort by severity (errors first), then by code; drop exact repetitions."""
    return tuple(sorted(dict.fromkeys(findings), key=lambda item: (_ORDER[item.severity], item.code)))


def some(names: Sequence[str], limit: int = 4) -> str:
    """Join the first few names and the number of the others."""
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")
