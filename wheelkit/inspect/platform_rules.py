"""Check of a wheel's libraries and platform tag against auditwheel's manylinux policies.

Nothing is grafted.

auditwheel is used as a library, since its command has three defects. It adds libraries
of the build machine to the wheel unless each is excluded, leaves an unrepaired wheel
behind when it fails, and ignores symbol references without a version. Source: PEP 600
and auditwheel's manylinux-policy.json.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path, PurePosixPath

from auditwheel.architecture import Architecture
from auditwheel.lddtree import DynamicExecutable, ldd
from auditwheel.libc import Libc
from auditwheel.policy import ExternalReference, Policy, WheelPolicies

from core.errors import CiBuildError, ElfError, RepairError
from core.frozen import frozen
from core.model import Finding, Severity
from core.rocm_layouts import rocm_with
from wheelkit.elf import libstdcxx
from wheelkit.elf.snapshot import Elf
from wheelkit.findings import finding, some
from wheelkit.inspect.inspection_model import ElfFacts, PlatformSupport

ROCM_SONAME = re.compile(
    r"lib(amdhip64|amd_\w+|hip\w*|hsa\w*|roc\w*|rccl\w*|MIOpen\w*)(-\w+)*\.so(\.\d+)*"
)
"""Sonames of a ROCm installation; allowed if the caller passes no list."""

_DEFAULT = "manylinux_2_28"
"""Platform that libraries are checked against if the wheel has no manylinux tag."""

_SHOWN = 3
_LOADERS = {
    "x86_64": frozenset({"ld-linux-x86-64.so.2"}),
    "aarch64": frozenset({"ld-linux-aarch64.so.1"}),
}
"""Dynamic loader of each machine (psABI); auditwheel does not list loaders as libraries."""


@frozen
class PlatformVerdict:
    """The platform that the libraries of a wheel support.

    Attributes:
        policy: oldest platform that the libraries run on, such as
            manylinux_2_27_x86_64; linux_x86_64 if there is none.
        findings: reasons against the requested platform (errors), and warnings and
            notes.
        external: sonames on the allow-list that the libraries need, sorted.
    """

    policy: str
    findings: tuple[Finding, ...]
    external: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """True if the wheel may have the requested platform tag."""
        return not any(f.severity is Severity.ERROR for f in self.findings)


@frozen
class _JudgedLibrary:
    """One library as read by auditwheel and by `Elf`.

    Attributes:
        references: policy name -> external libraries and forbidden symbols.
        allowed: sonames on the allow-list that the library needs.
        assumed: symbol -> its version in libstdc++, for strong references without a
            version.
        unknown: strong references without a version to symbols of namespace std that
            libstdc++ does not export.
    """

    name: str
    elf: Elf
    references: Mapping[str, ExternalReference]
    problems: tuple[Finding, ...]
    allowed: tuple[str, ...]
    assumed: Mapping[str, str]
    unknown: tuple[str, ...]


def platform_verdict(
    libraries: Mapping[str, Path],
    *,
    allowed_sonames: frozenset[str],
    platform: str,
    elves: Mapping[str, Elf] | None = None,
) -> PlatformVerdict:
    """Check the ELF members of one wheel against a platform.

    Args:
        libraries: member path -> file, laid out as in the wheel so that $ORIGIN finds
            siblings.
        allowed_sonames: exact sonames, not patterns, that may come from outside the
            wheel and the platform.
        platform: platform tag such as manylinux_2_28_x86_64.
        elves: member path -> snapshot of its file; None reads the files.

    Raises:
        RepairError: the platform is unknown, or there are no libraries.
        ElfError: `Elf` or auditwheel cannot read a file as ELF.
    """
    policies, policy = _policies(platform)
    root = _root(libraries)
    if elves is None:
        elves = {name: Elf.read(path) for name, path in libraries.items()}
    exported = set(chain.from_iterable(elf.exported for elf in elves.values()))
    members = [
        _member(name, elf, root, policies, allowed_sonames, exported)
        for name, elf in elves.items()
    ]
    findings = chain.from_iterable(_findings(member, policy) for member in members)
    external = set(chain.from_iterable(member.allowed for member in members))
    return PlatformVerdict(
        policy=_best(members, policies).name,
        findings=tuple(findings),
        external=tuple(sorted(external)),
    )


def platform_libraries(platform: str) -> frozenset[str]:
    """Return the sonames that every system of a platform has, including its dynamic loader.

    Raises:
        RepairError: the platform is unknown.
    """
    policies, policy = _policies(platform)
    loaders = _LOADERS.get(policies.architecture.value, frozenset())
    return loaders.union(policy.whitelist)


@cache
def _policies(platform: str) -> tuple[WheelPolicies, Policy]:
    # auditwheel reads and validates its table for each object.
    try:
        machine = next(a for a in Architecture if platform.endswith(f"_{a.value}"))
        policies = WheelPolicies(libc=Libc.GLIBC, arch=machine)
        return policies, policies.get_policy_by_name(platform)
    except (StopIteration, LookupError) as error:
        raise RepairError(
            f"auditwheel does not know the platform {platform!r}.",
            hint="Use a tag such as manylinux_2_28_x86_64.",
        ) from error


def _root(libraries: Mapping[str, Path]) -> Path:
    for name, path in libraries.items():
        return path.parents[len(PurePosixPath(name).parts) - 1]
    raise RepairError("The wheel has no libraries.")


def _member(
    name: str,
    elf: Elf,
    root: Path,
    policies: WheelPolicies,
    allowed: frozenset[str],
    exported: set[str],
) -> _JudgedLibrary:
    # Empty search paths: libraries of the build machine must not change the verdict.
    nowhere: dict[str, list[str]] = {"conf": [], "env": [], "interp": []}
    try:
        # auditwheel matches exclusions as patterns, and omits excluded libraries from
        # `needed`.
        tree = ldd(
            root / name,
            ldpaths=nowhere,
            exclude=frozenset(glob.escape(soname) for soname in allowed),
        )
        references = _references(tree, elf, policies, root)
    except Exception as error:  # auditwheel's parsers raise many kinds of errors
        raise ElfError(
            f"auditwheel cannot read {name}: {error!r}.",
            hint="Build the damaged library again.",
        ) from error
    strong = [
        s.name
        for s in elf.undefined
        if s.version is None
        and s.bind != "WEAK"
        and s.name not in exported
        and libstdcxx.is_standard(s.name)
    ]
    versions = libstdcxx.versions() if strong else {}
    return _JudgedLibrary(
        name=name,
        elf=elf,
        references=references,
        problems=tuple(_machine_problems(name, tree, policies)),
        allowed=tuple(soname for soname in elf.needed if soname in allowed),
        assumed={name: versions[name] for name in strong if name in versions},
        unknown=tuple(name for name in strong if name not in versions),
    )


def _references(
    tree: DynamicExecutable, elf: Elf, policies: WheelPolicies, root: Path
) -> Mapping[str, ExternalReference]:
    """Return policy name -> external libraries and forbidden symbols of one library.

    For each old policy, auditwheel reads all symbols of a library that needs the C
    library again, which takes longer than all other checks. The symbols in `elf` are
    used instead; libraries with forbidden symbols are never external.
    """
    restricted = set(chain.from_iterable(policy.blacklist for policy in policies))
    unrestricted = tuple(name for name in tree.needed if name not in restricted)
    others = replace(tree, needed=unrestricted)
    references: dict[str, ExternalReference] = policies.lddtree_external_references(
        others, root
    )
    strong = {symbol.name for symbol in elf.undefined if symbol.bind != "WEAK"}
    for policy in policies:
        for soname in tree.needed:
            used = policy.blacklist.get(soname, frozenset()) & strong
            if used:
                references[policy.name].blacklist[soname] = sorted(used)
    return references


def _best(members: Sequence[_JudgedLibrary], policies: WheelPolicies) -> Policy:
    """Return the oldest platform that meets the needs of every library."""
    if any(member.problems for member in members):
        return policies.linux
    versions: dict[str, set[str]] = {}
    incomplete = set()
    for member in members:
        versions.setdefault(libstdcxx.SONAME, set()).update(member.assumed.values())
        for soname, names in member.elf.version_needs.items():
            if not soname.startswith("ld-linux"):
                versions.setdefault(soname, set()).update(names)
        for name, reference in member.references.items():
            if reference.libs or reference.blacklist:
                incomplete.add(name)
    complete = max(policy for policy in policies if policy.name not in incomplete)
    return min(complete, policies.versioned_symbols_policy(versions))


def _machine_problems(
    name: str, tree: DynamicExecutable, policies: WheelPolicies
) -> Iterator[Finding]:
    ours = policies.architecture
    try:
        baseline = tree.platform.baseline_architecture
        extended = tree.platform.extended_architecture
    except ValueError as error:
        yield finding(
            "machine-foreign",
            f"the library is for an unknown machine: {error}.",
            member=name,
        )
        return
    if baseline != ours.baseline:
        yield finding(
            "machine-foreign",
            f"the library is for {baseline}, not {ours}.",
            member=name,
        )
    elif extended is not None and not ours.is_superset(extended):
        yield finding(
            "isa-too-new",
            f"the library needs {extended}, but the platform promises {ours}.",
            member=name,
        )
    if tree.libc not in (None, Libc.GLIBC):
        yield finding(
            "libc-foreign", f"the library is linked against {tree.libc}.", member=name
        )


def _findings(member: _JudgedLibrary, policy: Policy) -> Iterator[Finding]:
    yield from member.problems
    reference = member.references[policy.name]
    for soname in (s for s in member.elf.needed if s in reference.libs):
        text = (
            f"the library needs {soname}, which is neither part of {policy.name} nor on"
            " the allow-list."
        )
        item = finding("needed-not-allowed", text, member=member.name)
        yield replace(item, remedy=rocm_with([soname]) or item.remedy)
    for soname, symbols in sorted(reference.blacklist.items()):
        text = (
            f"the library uses {some(symbols, _SHOWN)} of {soname}, which {policy.name}"
            " does not promise."
        )
        yield finding("symbol-not-allowed", text, member=member.name)
    for soname, versions in sorted(member.elf.version_needs.items()):
        for version in _too_new(policy, versions):
            users = [s.name for s in member.elf.undefined if s.version == version]
            text = (
                f"the library needs {version} of {soname} (for {some(users, _SHOWN)}),"
                f" which {policy.name} lacks."
            )
            yield finding("symbol-version-too-new", text, member=member.name)
    # References to the standard library without a version.
    for version in _too_new(policy, set(member.assumed.values())):
        names = [name for name, brought in member.assumed.items() if brought == version]
        files = [name for name in names if "10filesystem" in name]
        what = (
            f"{len(names)} symbol{'s' * (len(names) > 1)} of"
            f" {'std::filesystem' if files else 'libstdc++'}"
        )
        text = (
            f"the library needs {what} without a version:"
            f" {some(files or names, _SHOWN)}. {policy.name} lacks {version}, the first"
            " version of libstdc++ with these symbols."
        )
        yield finding("unversioned-symbol-too-new", text, member=member.name)
    if member.unknown:
        text = (
            f"the library needs {some(member.unknown, _SHOWN)} without a version, which"
            " libstdc++ does not export."
        )
        unknown = finding("unversioned-symbol-unknown", text, member=member.name)
        # A library exports instances of standard templates for its own types, so an
        # allowed library may have them.
        yield replace(unknown, severity=Severity.WARNING) if member.allowed else unknown


def _too_new(policy: Policy, versions: Iterable[str]) -> list[str]:
    """Return the versions that a policy lacks although it lists their prefix with other numbers."""
    result = []
    for version in sorted(versions):
        prefix, _, number = version.partition("_")
        if number not in policy.symbol_versions.get(prefix, {number}):
            result.append(version)
    return result


def check_platform(
    elfs: Sequence[ElfFacts],
    files: Mapping[str, Path],
    platforms: Sequence[str],
    allowed_sonames: Iterable[str] | None,
    elves: Mapping[str, Elf],
) -> tuple[PlatformSupport | None, list[Finding]]:
    """Compare the needs of the libraries with the platform tags.

    Args:
        elfs: host libraries of the wheel, not code objects; may be empty.
        files: path inside the wheel -> file, laid out as in the wheel.
        allowed_sonames: exact sonames that users have installed; None allows the
            libraries of ROCm.
        elves: path inside the wheel -> snapshot of the file.
    """
    if not elfs:
        return None, []
    if allowed_sonames is None:
        needed = chain.from_iterable(elf.needed for elf in elfs)
        allowed_sonames = filter(ROCM_SONAME.fullmatch, needed)
    own = {Path(elf.path).name for elf in elfs}
    claimed = [name for name in platforms if name.startswith("manylinux")]
    findings = []
    if "any" in platforms:
        text = "the platform tag is `any`, but the wheel has libraries."
        findings.append(finding("tag-untrue", text))
    elif not claimed:
        if not platforms[0].startswith("linux_"):
            return None, findings
        text = f"the platform tag is {platforms[0]}, which names no system."
        findings.append(finding("tag-linux", text))
    try:
        lowest = max(claimed, key=_policy, default=f"{_DEFAULT}_{elfs[0].machine}")
        result = platform_verdict(
            files,
            allowed_sonames=frozenset(allowed_sonames) - own,
            platform=lowest,
            elves=elves,
        )
    except Exception as error:
        # Auditwheel and pyelftools raise many kinds of errors for damaged libraries.
        text = f"auditwheel cannot read the libraries ({error!r})."
        if isinstance(error, CiBuildError):
            text = error.message
        return None, [*findings, finding("tag-unjudged", text)]
    if claimed:
        findings += result.findings
    return PlatformSupport(policy=result.policy, external=result.external), findings


def _policy(platform: str) -> Policy:
    """Return the policy of a platform; policies of older platforms are greater."""
    return _policies(platform)[1]
