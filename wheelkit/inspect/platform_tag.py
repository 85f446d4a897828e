"""Check of a wheel's platform tags against auditwheel's verdict on its libraries."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from core.errors import CiBuildError
from core.model import Finding
from wheelkit.findings import finding
from wheelkit.inspect.manylinux import PlatformVerdict, platform_verdict
from wheelkit.inspect.model import ElfFacts, PlatformSupport

ROCM_SONAME = re.compile(r"lib(amdhip64|amd_\w+|hip\w*|hsa\w*|roc\w*|rccl\w*|MIOpen\w*)(-\w+)*\.so(\.\d+)*")
"""Libraries of a ROCm installation; allowed if the caller passes no list."""

_LEGACY = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
_MANYLINUX = re.compile(r"(?P<legacy>manylinux(?:1|2010|2014))_(?P<arch>\w+)|manylinux_(\d+)_(\d+)_(?P<machine>\w+)")
_DEFAULT = "manylinux_2_28"
"""Platform to check against if auditwheel has no rules for the tag."""


def check_platform(
    elfs: Sequence[ElfFacts],
    files: Mapping[str, Path],
    platforms: Sequence[str],
    allowed_sonames: Collection[str] | None,
) -> tuple[PlatformSupport | None, list[Finding]]:
    """Compare the needs of the libraries with the platform tags.

    Args:
        elfs: libraries of the wheel for the processor; empty for a wheel without any.
        files: path inside the wheel -> file, laid out as in the wheel.
        allowed_sonames: exact names of libraries that users have; None allows the libraries of ROCm.
    """
    if not elfs:
        return None, []
    needed = {soname for elf in elfs for soname in elf.needed}
    own = {Path(elf.path).name for elf in elfs}
    allowed = frozenset(filter(ROCM_SONAME.fullmatch, needed) if allowed_sonames is None else allowed_sonames) - own
    claimed = sorted(filter(_MANYLINUX.fullmatch, platforms), key=_glibc)
    findings = [finding("tag-untrue", "the platform tag is `any`, but it has libraries.")] if "any" in platforms else []
    if not claimed and not any(p == "any" or p.startswith("linux_") for p in platforms):
        return None, findings
    try:
        result = platform_verdict(
            files, allowed_sonames=allowed, platform=claimed[0] if claimed else f"{_DEFAULT}_{elfs[0].machine}"
        )
    except CiBuildError as error:
        return None, [*findings, finding("tag-unjudged", error.message)]
    except Exception as error:  # auditwheel and pyelftools raise many kinds of errors for damaged libraries
        return None, [*findings, finding("tag-unjudged", f"auditwheel cannot read the libraries ({error!r}).")]
    findings += _against_tags(result, claimed, platforms)
    return PlatformSupport(policy=result.policy, external=result.external), findings


def _against_tags(result: PlatformVerdict, claimed: Sequence[str], platforms: Sequence[str]) -> Iterator[Finding]:
    """Yield the findings that follow from the verdict; without a manylinux tag its details are left out."""
    honest = result.policy
    if not claimed:
        if _MANYLINUX.fullmatch(honest) and "any" not in platforms:
            yield finding("tag-too-new", f"{platforms[0]} promises nothing; the libraries allow {honest}.")
        return
    yield from result.findings
    lowest = claimed[0]
    if not result.ok:
        yield finding("tag-untrue", f"{lowest} is promised, the libraries allow {honest}.")
    elif _MANYLINUX.fullmatch(honest) and _glibc(honest) < _glibc(lowest):
        yield finding("tag-too-new", f"{lowest} is promised, the libraries allow {honest}.")
    if len(claimed) > 1:
        yield finding("tag-redundant", f"{lowest} implies {', '.join(claimed[1:])}.")
    if result.external:
        yield finding("tag-by-exception", f"{lowest} holds only if users have {', '.join(result.external)}.")


def _glibc(platform: str) -> tuple[int, int]:
    """Return the glibc version of a manylinux tag (PEP 600; PEP 513, 571 and 599 for the old names)."""
    match = _MANYLINUX.fullmatch(platform)
    assert match is not None
    return _LEGACY[match["legacy"]] if match["legacy"] else (int(match[3]), int(match[4]))
