"""The nouns: frozen, keyword-only, without I/O."""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from core.errors import RequestError, WheelSetError
from core.source_request import SourceRequest

SCHEMA_VERSION = 1
"""Version of the `wheels.json` format."""
WHEELS_JSON, CONSTRAINTS, PYLOCK, SHA256SUMS = "wheels.json", "constraints.txt", "pylock.toml", "SHA256SUMS"
SBOM = "sbom.cdx.json"
"""The files beside the wheels of a set."""


class Severity(enum.StrEnum):
    """Severity of a finding; an error fails a gate and makes the exit code non-zero."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, kw_only=True, slots=True)
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


@dataclass(frozen=True, kw_only=True, slots=True)
class GfxTarget:
    """One AMDGPU compiler target, such as gfx942, gfx9-4-generic or gfx90a:sramecc+:xnack-.

    Source of the syntax: LLVM, "User Guide for AMDGPU Backend", target IDs.
    """

    processor: str
    features: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> GfxTarget:
        """Read a target ID; features are sorted, as LLVM prints them."""
        processor, *features = text.split(":")
        good = re.fullmatch(r"gfx(?:[0-9a-f]{3,4}|[0-9]+(?:-[0-9]+)?-generic)", processor)
        if good is None or not all(re.fullmatch(r"(xnack|sramecc)[+-]", f) for f in features):
            raise RequestError(f"{text!r} is not a gfx target.", hint="Write it like gfx942 or gfx90a:xnack-.")
        return cls(processor=processor, features=tuple(sorted(features)))

    def __str__(self) -> str:
        return ":".join((self.processor, *self.features))


@functools.total_ordering
@dataclass(frozen=True, kw_only=True, slots=True)
class RocmVersion:
    """A ROCm version as TheRock numbers it: 7.10.0, 7.10.0a20251120, 7.10.0rc1, 7.10.0.dev0+abc.

    The order is that of PEP 440: dev < a < rc < release.
    """

    text: str

    def __post_init__(self) -> None:
        # The doctor imports this module where no package is installed.
        from packaging.version import InvalidVersion, Version

        try:
            parsed = Version(self.text)
        except InvalidVersion as error:
            raise RequestError(
                f"{self.text!r} is not a ROCm version.", hint="Write it like 7.2.0 or 7.10.0a20251120."
            ) from error
        if len(parsed.release) < 2:
            raise RequestError(f"ROCm version {self.text!r} has no minor number.", hint="Write it like 7.2.0.")

    @property
    def major(self) -> int:
        """The numeric major; it is part of package names (`jax-rocm{major}-plugin`)."""
        # As above.
        from packaging.version import Version

        return Version(self.text).major

    def __lt__(self, other: RocmVersion) -> bool:
        # As above.
        from packaging.version import Version

        return Version(self.text) < Version(other.text)

    def __str__(self) -> str:
        return self.text


class Payload(enum.StrEnum):
    """Origin of the native code."""

    SOURCE = "source"
    PUBLISHED = "published"


class Channel(enum.StrEnum):
    """The two prefixes of a bucket: built sets and released sets."""

    STAGING = "v2-staging"
    RELEASED = "v2"


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelRequest:
    """Kernel modules of the `jax_aiter` wheel, and how they are built.

    Attributes:
        modules: names; empty selects all that the toolchain builds for the targets.
        toolchain: pypi, rocm or container.
        rocm: ROCm folder of the toolchains rocm and container; empty selects /opt/rocm.
        image: image of the toolchain container.
        source: AITER's sources: a folder, an archive or `amd-aiter==VERSION`; empty selects the pinned release.
        require: modules that must have code for every target.
        allow_partial: leave out modules that cannot be built, and mark the wheel.
        instances: regular expression that selects generated kernels by name; empty selects all.
    """

    modules: tuple[str, ...] = ()
    toolchain: str = "pypi"
    rocm: str = ""
    image: str = ""
    source: str = ""
    require: tuple[str, ...] = ()
    allow_partial: bool = False
    instances: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildRequest:
    """Contents of a wheel set to build, parsed and checked; equal requests give equal plans.

    Attributes:
        jax_version: release of jax to build for, such as 0.10.2; a `.postN` names a post release of the plugin.
        rocm_version: the ROCm that the native code is built against.
        python_versions: such as ("3.11", "3.12"), ascending.
        targets: gfx targets of the wheels; None keeps all that the published wheels have.
        rocm_version_extra: append `+rocm<version>` to wheel versions.
        post_release: N of `.postN`, or None.
        strip: move symbol tables into separate debug files.
        source: options of a build from source; None with published wheels.
        kernels: kernel modules of the set; None for none.
    """

    payload: Payload
    jax_version: str
    rocm_version: RocmVersion
    python_versions: tuple[str, ...]
    targets: tuple[GfxTarget, ...] | None
    rocm_version_extra: bool = True
    post_release: int | None = None
    strip: bool = True
    source: SourceRequest | None = None
    kernels: KernelRequest | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberInfo:
    """One ELF file of a wheel.

    Attributes:
        path: path inside the wheel.
        targets: gfx targets that have code in it, sorted; empty when it holds no device code.
        needed: DT_NEEDED sonames, in order.
        symbol_versions: highest version per prefix, such as {"GLIBC": "2.27"}.
    """

    path: str
    size: int
    sha256: str
    targets: tuple[str, ...]
    needed: tuple[str, ...]
    symbol_versions: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Wheel:
    """One wheel file of a set.

    Attributes:
        name: normalised project name (PEP 503).
        requires_dist: as in METADATA.
        source_sha256: digest of the input that it was made of; equal to `sha256` when it was taken as it is.
        source_size: size of that input in bytes.
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
    def as_published(self) -> bool:
        """Whether it is a byte-for-byte copy of its input, which is never repaired."""
        return self.sha256 == self.source_sha256


@dataclass(frozen=True, kw_only=True, slots=True)
class InputFile:
    """An input file of a set, with its origin."""

    filename: str
    size: int
    sha256: str
    url: str


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelSet:
    """The unit of build, test and promotion; its digest is its name.

    Attributes:
        index: name of the index it belongs to: a family such as gfx94X-dcgpu, or multi-arch.
        targets: gfx targets that every member with device code must hold, and no others; sorted.
        request: the options that made it, as JSON values.
        tools: versions of the tools that made it.
        pins: exact versions of projects that belong to the set without being in it, such as jax.
        files: name -> sha256 of what lies beside the wheels: constraints, lock, debug files.
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

    @property
    def digest(self) -> str:
        """SHA-256 over the canonical JSON of everything else; 64 hexadecimal digits."""
        canonical = json.dumps(to_json(self), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(canonical.encode()).hexdigest()


class Outcome(enum.StrEnum):
    """Result of a gate; `skipped` when there was nothing to check."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    ERROR = "error"


class Tier(enum.StrEnum):
    """Strength of evidence, weakest first; results on a CPU or a CUDA device prove nothing about ROCm.

    The last two stand beside the others, see `TIER_ORDER`: they meet no requirement but one for themselves.
    """

    STRUCTURE = "structure"
    COMPILED = "compiled"
    DEVICE = "device"
    CPU = "cpu"
    CUDA = "cuda"


TIER_ORDER = (Tier.STRUCTURE, Tier.COMPILED, Tier.DEVICE)
"""The tiers of a gfx target, weakest first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """One gate's word on one set: it counts for exactly the digest that it names.

    Attributes:
        target: a gfx target, or "any" for gates that do not depend on one.
        started, ended: UTC, ISO 8601 with seconds.
        settings: what the gate was told, and digests of its own data.
        logs: files with what its processes printed, by their names beside it -> sha256.
        counts: collected (= run + skipped), run (= passed + failed + known), passed, failed, known, skipped.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Decision of the policy on a set; promotion needs `blocked_by` to be empty.

    Attributes:
        blocked_by: a sentence for each reason.
        tiers: gfx target -> how strongly it was tested, whatever was passed over.
        bypassed: a sentence for each reason that a bypass passed over, with who answers for it.
        warnings: what a person should know all the same.
        attested: who signed attestations -> file names of the wheels.
        provenances: file name of a wheel -> sha256 of its attestations, as they were verified.
    """

    set_digest: str
    blocked_by: tuple[str, ...]
    tiers: Mapping[str, str]
    bypassed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    attested: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    provenances: Mapping[str, str] = field(default_factory=dict)

    @property
    def allowed(self) -> bool:
        """Whether promotion of the set is allowed."""
        return not self.blocked_by


class Progress(Protocol):
    """Receiver of the progress of long work; `core.report` implements it."""

    def step(self, text: str) -> None:
        """Report that a new step begins."""

    def advance(self, done: int, total: int) -> None:
        """Report the bytes that are done in the current step, and their total."""


def to_json(value: Any) -> Any:  # noqa: ANN401 - nouns in, JSON values out
    """Turn a noun into JSON values: tuples become lists, sets sorted lists, enums, targets and versions their text."""
    if isinstance(value, (GfxTarget, RocmVersion)):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in sorted(value.items())}
    if isinstance(value, (set, frozenset)):
        return sorted(to_json(item) for item in value)
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, enum.Enum):
        return value.value
    return value


def dump_wheel_set(wheel_set: WheelSet) -> str:
    """Return the text of `wheels.json`: the set, its schema and its digest."""
    body = {"schema": SCHEMA_VERSION, "digest": wheel_set.digest, **to_json(wheel_set)}
    return json.dumps(body, indent=2, ensure_ascii=False) + "\n"


def load_wheel(body: Mapping[str, Any]) -> Wheel:
    """Return a wheel from its JSON values; KeyError or TypeError if fields are missing or unknown."""
    members = tuple(
        MemberInfo(**{**member, "targets": tuple(member["targets"]), "needed": tuple(member["needed"])})
        for member in body["members"]
    )
    lists = {"tags": tuple(body["tags"]), "requires_dist": tuple(body["requires_dist"]), "members": members}
    return Wheel(**{**body, **lists})


def load_wheel_set(text: str | bytes, where: str = "wheels.json") -> WheelSet:
    """Read `wheels.json`.

    Raises:
        WheelSetError: unknown schema, missing or unknown fields, or a digest that is not that of the content.
    """
    try:
        body = json.loads(text)
        schema, digest = body.pop("schema"), body.pop("digest")
        if schema != SCHEMA_VERSION:
            raise WheelSetError(
                f"{where} has schema {schema!r}; this version reads {SCHEMA_VERSION}.", hint="Build the set again."
            )
        wheels = tuple(load_wheel(wheel) for wheel in body.pop("wheels"))
        inputs = tuple(InputFile(**item) for item in body.pop("inputs"))
        for key in ("targets", "python_versions"):
            body[key] = tuple(body[key])
        wheel_set = WheelSet(wheels=wheels, inputs=inputs, **body)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise WheelSetError(f"{where} is not a valid wheels.json: {why}.", hint="Build the set again.") from error
    if wheel_set.digest != digest:
        raise WheelSetError(
            f"{where} records digest {digest}, but its content has {wheel_set.digest}.",
            hint="The file was changed after it was written; build the set again.",
        )
    return wheel_set
