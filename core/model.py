"""Data types of the project: frozen, keyword-only dataclasses without I/O."""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Protocol

from core.digests import sha256_of
from core.errors import RequestError
from core.frozen import frozen
from core.source_request import SourceRequest

WHEELS_JSON = "wheels.json"
CONSTRAINTS = "constraints.txt"
PYLOCK = "pylock.toml"
SHA256SUMS = "SHA256SUMS"
SBOM, ROCM_LOCK = "sbom.cdx.json", "rocm.lock"
"""Names of the files beside the wheels of a set."""


class Severity(enum.StrEnum):
    """Severity of a finding; an error fails a gate and makes the exit code non-zero."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@frozen
class Finding:
    """One defect of one wheel, with a one-line remedy.

    Attributes:
        code: stable kebab-case name, such as `runpath-build-leftover`.
        member: path inside the wheel, or empty for the wheel as a whole.
    """

    code: str
    severity: Severity
    message: str
    remedy: str
    member: str = ""


@frozen
class GfxTarget:
    """One AMDGPU compiler target, such as gfx942, gfx9-4-generic or gfx90a:sramecc+:xnack-.

    Source of the syntax: LLVM, "User Guide for AMDGPU Backend", target IDs.
    """

    processor: str
    features: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> GfxTarget:
        """Parse a target ID; features are sorted, as LLVM prints them."""
        processor, *features = text.split(":")
        good = re.fullmatch(
            r"gfx(?:[0-9a-f]{3,4}|[0-9]+(?:-[0-9]+)?-generic)", processor
        )
        if good is None or not all(
            re.fullmatch(r"(xnack|sramecc)[+-]", f) for f in features
        ):
            raise RequestError(
                f"{text!r} is not a gfx target.",
                hint="Write it like gfx942 or gfx90a:xnack-.",
            )
        return cls(processor=processor, features=tuple(sorted(features)))

    def __str__(self) -> str:
        return ":".join((self.processor, *self.features))


@functools.total_ordering
@frozen
class RocmVersion:
    """A ROCm version in TheRock's numbering: 7.10.0, 7.10.0a20251120, 7.10.0rc1, 7.10.0.dev0+abc.

    Versions are ordered by PEP 440: dev < a < rc < release.
    """

    text: str

    def __post_init__(self) -> None:
        # Start-up time: `packaging` takes longer to import than this module.
        from packaging.version import Version

        try:
            parsed = Version(self.text)
        except ValueError as error:  # or a number of more than 4300 digits
            raise RequestError(
                f"{self.text!r} is not a ROCm version.",
                hint="Write it like 7.2.0 or 7.10.0a20251120.",
            ) from error
        if len(parsed.release) < 2:
            raise RequestError(
                f"ROCm version {self.text!r} has no minor number.",
                hint="Write it like 7.2.0.",
            )

    @property
    def major(self) -> int:
        """The numeric major version, which is part of package names (`jax-rocm{major}-plugin`)."""
        # Start-up time, as in `__post_init__`.
        from packaging.version import Version

        return Version(self.text).major

    def __lt__(self, other: RocmVersion) -> bool:
        # Start-up time, as in `__post_init__`.
        from packaging.version import Version

        return Version(self.text) < Version(other.text)

    def __str__(self) -> str:
        return self.text


class Payload(enum.StrEnum):
    """Origin of the native code."""

    SOURCE = "source"
    PUBLISHED = "published"


class Channel(enum.StrEnum):
    """Prefix in a bucket: `v2-staging` for built sets, `v2` for released sets."""

    STAGING = "v2-staging"
    RELEASED = "v2"


@frozen
class KernelRequest:
    """Kernel modules of the `jax_aiter` wheel and the options of their build.

    Attributes:
        modules: names of the modules; empty selects all modules that the toolchain
            builds for the targets.
        toolchain: pypi or rocm.
        rocm: ROCm folder for the toolchain `rocm`.
        source: AITER's sources: a checkout, or `sdist` for the release of the package
            index; empty selects the pinned commit.
        require: modules that must have code for every target.
        allow_partial: whether to leave out modules that cannot be built, and mark the
            wheel as partial.
        attention: Composable Kernel's kernels of attention beside AITER's assembly:
            asm for none, common for those that modules.toml lists, or all.
        instances: regular expression that selects generated kernels by name; empty
            selects those of `attention`, and all others.
    """

    modules: tuple[str, ...] = ()
    toolchain: str = "pypi"
    rocm: str = ""
    source: str = ""
    require: tuple[str, ...] = ()
    allow_partial: bool = False
    attention: str = "asm"
    instances: str = ""


@frozen
class BuildRequest:
    """Parsed and checked options of a wheel set; equal requests produce equal plans.

    Attributes:
        jax_version: release of jax to build for, such as 0.10.2; a `.postN` names a
            post release of the plugin.
        rocm_version: version of the ROCm that the native code is built against.
        python_versions: Python versions, ascending, such as ("3.11", "3.12").
        targets: gfx targets of the wheels; None keeps all targets of the published
            wheels.
        rocm_version_extra: whether `+rocm<version>` is appended to wheel versions.
        post_release: N of `.postN`, or None.
        strip: whether symbol tables are moved into separate debug files.
        platform_tag: manylinux tag of the wheels without the machine, such as
            manylinux_2_28; `auto` is the lowest one that is true.
        source: options of a build from source; None for published wheels.
        kernels: kernel modules of the set; None for a set without them.
        find_links: absolute folders and URLs of pages that pip searches in addition to
            its index.
    """

    payload: Payload
    jax_version: str
    rocm_version: RocmVersion
    python_versions: tuple[str, ...]
    targets: tuple[GfxTarget, ...] | None
    rocm_version_extra: bool = True
    post_release: int | None = None
    strip: bool = True
    platform_tag: str = "auto"
    source: SourceRequest | None = None
    kernels: KernelRequest | None = None
    find_links: tuple[str, ...] = ()


@frozen
class MemberInfo:
    """One ELF file of a wheel.

    Attributes:
        path: path inside the wheel.
        targets: gfx targets with code in the file, sorted; empty for a file without
            device code.
        needed: DT_NEEDED sonames, in order.
        symbol_versions: highest required version of each symbol prefix, such as
            {"GLIBC": "2.27"}.
    """

    path: str
    size: int
    sha256: str
    targets: tuple[str, ...]
    needed: tuple[str, ...]
    symbol_versions: Mapping[str, str]


@frozen
class Wheel:
    """One wheel file of a set.

    Attributes:
        name: normalised project name (PEP 503).
        requires_dist: Requires-Dist fields of METADATA.
        source_sha256: sha256 of the input that the wheel was made from; equal to
            `sha256` for an unchanged copy.
        source_size: size of the input in bytes.
    """

    filename: str
    name: str
    version: str
    tags: tuple[str, ...]
    size: int
    sha256: str
    requires_python: str
    requires_dist: tuple[str, ...]
    members: tuple[MemberInfo, ...]
    source_sha256: str
    source_size: int

    @property
    def targets(self) -> tuple[str, ...]:
        """Return the gfx targets of all its members, sorted."""
        found: set[str] = set()
        for member in self.members:
            found.update(member.targets)
        return tuple(sorted(found))

    @property
    def as_published(self) -> bool:
        """Return whether the wheel is a byte-for-byte copy of its input.

        Such a copy is never repaired.
        """
        return self.sha256 == self.source_sha256


@frozen
class InputFile:
    """An input file of a set, with its origin."""

    filename: str
    size: int
    sha256: str
    url: str


@frozen
class RocmPackage:
    """A wheel of ROCm on AMD's server, which the wheels of a set are installed with.

    Attributes:
        project: normalised name (PEP 503), such as rocm-sdk-device-gfx942.
        url: address of the file, without credentials and fragment.
        sha256: 64 hexadecimal digits.
        size: bytes of the file; 0 if unknown.
    """

    project: str
    filename: str
    version: str
    url: str
    sha256: str
    size: int = 0


@dataclass(frozen=True, kw_only=True)
class WheelSet:
    """Wheels that are built, tested and promoted together; the digest of the set is its name.

    Attributes:
        index: name of the set's index: a family such as gfx94X-dcgpu, or multi-arch.
        targets: exact gfx targets of every member with device code, sorted.
        request: options of the build, as JSON values.
        tools: versions of the tools that built the set.
        pins: exact versions of projects that the set needs but does not contain, such
            as jax.
        files: name -> sha256 of each file beside the wheels: constraints, lock, debug
            files.
        file_sizes: name -> size in bytes of each of `files`.
        rocm_packages: wheels of the set's ROCm; empty if their digests are unknown, or
            if its ROCm has no wheels.
    """

    index: str
    targets: tuple[str, ...]
    rocm_version: str
    jax_version: str
    python_versions: tuple[str, ...]
    request: Mapping[str, Any]
    inputs: tuple[InputFile, ...]
    tools: Mapping[str, str]
    pins: Mapping[str, str]
    wheels: tuple[Wheel, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    file_sizes: Mapping[str, int] = field(default_factory=dict)
    rocm_packages: tuple[RocmPackage, ...] = ()

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the set's canonical JSON as 64 hexadecimal digits."""
        canonical = json.dumps(
            to_json(self),
            sort_keys=True,
            separators=(",", ":"),
            ensure_ascii=False,
        )
        return sha256_of(canonical.encode())


class Outcome(enum.StrEnum):
    """Result of a gate; `skipped` if there was nothing to check."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    ERROR = "error"


class Tier(enum.StrEnum):
    """Strength of evidence: `TIER_ORDER` lists the tiers of gfx targets, weakest first.

    `CPU` and `CUDA` are outside of this order: results on a CPU or a CUDA device prove
    nothing about ROCm, and each of the two tiers only meets a requirement for the same
    tier.
    """

    STRUCTURE = "structure"
    COMPILED = "compiled"
    DEVICE = "device"
    CPU = "cpu"
    CUDA = "cuda"


TIER_ORDER = (Tier.STRUCTURE, Tier.COMPILED, Tier.DEVICE)
"""The tiers of a gfx target, weakest first."""


@frozen
class Evidence:
    """Result of one gate for one set.

    The evidence is valid only for a set with exactly this digest.

    Attributes:
        target: a gfx target, or "any" for a gate that does not depend on the target.
        started, ended: UTC, ISO 8601 with seconds.
        settings: options of the gate, and digests of its data files.
        logs: name -> sha256 of each file with the output of the gate's processes; the
            files lie beside the evidence.
        counts: collected (= run + skipped), run (= passed + failed + known), passed,
            failed, known, skipped.
        findings: errors and warnings.
    """

    set_digest: str
    gate: str
    target: str
    tier: Tier
    outcome: Outcome
    started: str
    ended: str
    machine: str
    settings: Mapping[str, str]
    counts: Mapping[str, int]
    findings: tuple[Finding, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    logs: Mapping[str, str] = field(default_factory=dict)


@frozen
class Requirement:
    """The evidence of one gate for one target that a policy requires.

    Attributes:
        target: a gfx target, or "any".
        ended: time of the latest evidence that counts; empty without one.
        problems: reasons why the requirement is not met, each the second half of a
            sentence.
        failed: whether a problem is a failure, which no exception for the gate excuses.
        settings: required settings of the gate, such as size, passes and image.
        evidence: for each present evidence that counts, its end, outcome, and the
            settings that tell parts of a gate and images apart.
    """

    gate: str
    target: str
    ended: str
    problems: tuple[str, ...]
    failed: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    evidence: tuple[Mapping[str, str], ...] = ()


@frozen
class Verdict:
    """Decision of the policy on a set; promotion needs `blocked_by` to be empty.

    Attributes:
        blocked_by: a sentence for each reason against the promotion.
        tiers: gfx target -> strongest tier at which the target passed; exceptions do
            not raise the tier.
        failing: gfx target -> how many programs of the gate `compile` fail, and which.
        tested: gfx target -> day and numbers of the tests that passed on its GPUs.
        excused: a sentence for each reason and failing test that an exception excuses,
            with the exception and the responsible person.
        missing_exceptions: the entry of the policy that would excuse each gate `device`
            that never ran, and each flaky test.
        invalid_exceptions: a sentence for each void, expired or unused exception; they
            are part of `warnings` too.
        warnings: problems that do not block the promotion.
        attested: signer -> file names of the attested wheels.
        provenances: file name of a wheel -> sha256 of its verified attestations.
        evidence: key -> sha256 of the evidence that counts, and of its signatures, logs
            and results.
        requirements: all evidence that the policy requires.
    """

    set_digest: str
    blocked_by: tuple[str, ...]
    tiers: Mapping[str, str]
    failing: Mapping[str, str] = field(default_factory=dict)
    tested: Mapping[str, str] = field(default_factory=dict)
    excused: tuple[str, ...] = ()
    missing_exceptions: tuple[str, ...] = ()
    invalid_exceptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    attested: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    provenances: Mapping[str, str] = field(default_factory=dict)
    evidence: Mapping[str, str] = field(default_factory=dict)
    requirements: tuple[Requirement, ...] = ()

    @property
    def allowed(self) -> bool:
        """True if the set may be promoted."""
        return not self.blocked_by


class Progress(Protocol):
    """Receiver of the progress of long work; `core.report` implements it."""

    def step(self, text: str) -> None:
        """Report that a new step begins."""

    def advance(self, done: int, total: int) -> None:
        """Report the progress of the current step: `done` of `total` bytes."""

    def count(
        self, done: int, total: int, what: str = "", *, unit: str = "actions"
    ) -> None:
        """Report the number of finished actions, their total, and the current action."""

    def plan(self, names: Sequence[str]) -> None:
        """Announce the steps to come, each by the first words of its text."""

    def task(
        self, label: str, *, transient: bool = False
    ) -> AbstractContextManager[Progress]:
        """Return the progress of one of several parallel tasks, for use in any thread.

        Args:
            transient: whether the task is shown only on a terminal, while it runs.
        """


_JSON_SCALARS = frozenset({str, int, bool, float, type(None)})


def to_json(value: Any) -> Any:  # noqa: ANN401 - data types in, JSON values out
    """Convert a value to JSON values: tuples become lists, sets sorted lists.

    The rest becomes text.
    """
    if type(value) in _JSON_SCALARS:  # most values
        return value
    if isinstance(value, (GfxTarget, RocmVersion)):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in sorted(value.items())}
    if isinstance(value, (set, frozenset)):
        return sorted(to_json(item) for item in value)
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, enum.Enum):
        return value.value
    return value.isoformat() if isinstance(value, date) else value
