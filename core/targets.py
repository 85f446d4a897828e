"""The gfx table (`targets.toml`): the only source of targets, families and lists of targets.

Names match exactly, never by substring; a difference in letter case is ignored if only
one name matches.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from core import kfd
from core.errors import MachineError, RequestError, UnknownTargetError
from core.frozen import frozen
from core.model import Finding, GfxTarget, Severity
from core.records import read_toml

ALL = "all"
"""The word that requests every target of the native code; see `is_all`."""
DEFAULT = "default"
"""The word that requests the targets of the default wheel set."""
MULTI_ARCH = "multi-arch"
"""The index for sets whose targets are not all in one per-family index."""
NATIVE = "native"
"""The word that requests the targets of this machine's GPUs; see `requested`."""
UNSUPPORTED = "unsupported"
"""The word that permits targets that XLA rejects at run time; see `requested`."""


@frozen
class TargetInfo:
    """One row of the table; the file has its first fields, except the name.

    Attributes:
        name: processor, such as gfx942 or gfx9-4-generic.
        product: product names; empty for a generic target.
        mach: EF_AMDGPU_MACH, the low byte of a code object's e_flags (LLVM,
            AMDGPUUsage).
        features: target features that can be switched on or off at compile time,
            sorted.
        always: those of the features that every GPU has on.
        families: names of the families with this target, except the family with the
            target's own name.
        covers: processors that run the target's code: several for a generic target,
            otherwise the target itself.
        xla: whether XLA accepts the target at run time; for a generic target, whether
            it accepts a covered processor.
        default: whether the target is in the default wheel set.
        gated: whether the target is tested on hardware before a release.
        aiter: whether AITER has kernels for the target.
    """

    name: str = ""
    product: str = ""
    architecture: str = ""
    mach: int
    features: tuple[str, ...]
    always: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    covers: tuple[str, ...] = ()
    xla: bool = False
    default: bool = False
    gated: bool = False
    aiter: bool = False


@frozen
class TargetTable:
    """The whole table.

    Attributes:
        targets: concrete and generic targets by name, in natural order.
        families: target names by family, in natural order; each target is also a family
            with one member.
        indexes: families with a package index; each concrete target is in exactly one
            of them.
    """

    targets: Mapping[str, TargetInfo]
    families: Mapping[str, tuple[str, ...]]
    indexes: tuple[str, ...]


@frozen
class _Lists:
    """Lists of `targets.toml`, which documents them."""

    xla: tuple[str, ...]
    default: tuple[str, ...]
    gated: tuple[str, ...]
    aiter: tuple[str, ...]
    indexes: tuple[str, ...]


@frozen
class _TargetFile:
    """Content of `targets.toml`."""

    lists: _Lists
    targets: Mapping[str, TargetInfo]
    generics: Mapping[str, TargetInfo]


def sort_key(target: GfxTarget | str) -> tuple[int, int, int, str]:
    """Return the key of the natural order: gfx90a, gfx942, gfx1030.

    A generic target precedes the targets it covers.
    """
    processor, _, features = str(target).partition(":")
    if generic := re.fullmatch(r"gfx(\d+)(?:-(\d+))?-generic", processor):
        return int(generic[1]), int(generic[2] or -1), -1, features
    # The last two digits are minor and stepping, both hexadecimal; the rest is the
    # major, decimal.
    return (
        int(processor[3:-2]),
        int(processor[-2], 16),
        int(processor[-1], 16),
        features,
    )


@functools.cache
def load_table() -> TargetTable:
    """Read `targets.toml`, once per process."""
    file = read_toml(Path(__file__).with_suffix(".toml"), _TargetFile)
    lists = file.lists
    rows: dict[str, TargetInfo] = {}
    for name, row in (*file.targets.items(), *file.generics.items()):
        covers = row.covers or (name,)
        architectures = [file.targets[covered].architecture for covered in covers]
        rows[name] = replace(
            row,
            name=name,
            architecture=", ".join(dict.fromkeys(architectures)),
            covers=covers,
            xla=not set(lists.xla).isdisjoint(covers),
            default=name in lists.default,
            gated=name in lists.gated,
            aiter=name in lists.aiter,
        )
    ordered = {name: rows[name] for name in sorted(rows, key=sort_key)}
    families: dict[str, tuple[str, ...]] = {}
    for name, info in ordered.items():
        for family in (name, *info.families):
            families[family] = (*families.get(family, ()), name)
    return TargetTable(targets=ordered, families=families, indexes=lists.indexes)


def table() -> tuple[TargetInfo, ...]:
    """Return the rows in natural order, generic targets last; `ci_build targets` prints them."""
    return tuple(
        sorted(
            load_table().targets.values(), key=lambda row: row.name.endswith("-generic")
        )
    )


def lists() -> dict[str, tuple[str, ...]]:
    """Return the three named lists of concrete targets, in natural order."""
    concrete = [load_table().targets[name] for name in _concrete()]
    return {
        "compiler-supported": tuple(row.name for row in concrete if row.xla),
        "default-wheels": tuple(row.name for row in concrete if row.default),
        "gated": tuple(row.name for row in concrete if row.gated),
    }


def covers() -> Mapping[str, tuple[str, ...]]:
    """Return generic target -> processors of the table that run its code."""
    return {
        name: row.covers
        for name, row in load_table().targets.items()
        if row.covers != (name,)
    }


def machs() -> Mapping[str, int]:
    """Return processor -> EF_AMDGPU_MACH, to compare e_flags with a bundle ID."""
    return {name: row.mach for name, row in load_table().targets.items()}


def is_all(spec: str | Sequence[str]) -> bool:
    """Return whether a request is `all`, which keeps every target of the native code.

    A published wheel may lack targets of the table, so `all` does not filter published
    code. For a build from source, `all` means every concrete target of the table.
    """
    return [word.lower() for word in split_words(spec)] == [ALL]


def split_words(spec: str | Sequence[str]) -> list[str]:
    """Return the words of a request, which commas or semicolons separate.

    GPU_ARCHS has semicolons.
    """
    text = spec if isinstance(spec, str) else ",".join(spec)
    return [word.strip() for word in re.split("[,;]", text) if word.strip()]


def expand(spec: str | Sequence[str]) -> tuple[GfxTarget, ...]:
    """Expand the words of a request into targets.

    Args:
        spec: words between commas or semicolons (or a sequence of them): target IDs,
            family names, `default`, or `all` on its own, which means every concrete
            target of the table (see `is_all`). A feature suffix of a family, as in
            gfx94X-dcgpu:xnack-, applies to each member.

    Returns:
        The targets without duplicates, in natural order.

    Raises:
        UnknownTargetError: a name is not in the table; the hint contains the closest
            names.
        RequestError: the request is empty or combines `all` with other words, a target
            lacks a requested feature, or only one of two IDs of a processor sets a
            feature (LLVM, AMDGPUUsage, target ID: a bundle cannot have both).
    """
    words = split_words(spec)
    if not words:
        raise RequestError(
            "No gfx target was named.",
            hint="Name targets or families, such as gfx942,gfx950.",
        )
    if len(words) > 1 and ALL in (word.lower() for word in words):
        raise RequestError(
            "'all' cannot be combined with other targets.",
            hint="Use either 'all' or a list.",
        )
    selected: set[GfxTarget] = set()
    for word in words:
        name, *features = word.split(":")
        for processor in _processors(name):
            selected.add(_checked(GfxTarget.parse(":".join((processor, *features)))))
    _refuse_ambiguity(selected)
    return in_order(selected)


def requested(
    spec: str | Sequence[str], *, published: bool = False
) -> tuple[GfxTarget, ...]:
    """Expand a user's request like `expand`.

    The word `native` means the targets of this machine's GPUs.

    Args:
        published: whether the native code is that of published wheels, whose XLA nobody
            can change. Words without a target that it accepts are refused, unless the
            request contains `unsupported`.

    Raises:
        MachineError: the request contains `native`, and the kernel driver reports no
            GPU, or a GPU without a target.
    """
    words: list[str] = []
    permitted = not published
    for word in split_words(spec):
        if word.lower() == UNSUPPORTED:
            permitted = True
        elif word.lower() == NATIVE:
            words += _native()
        else:
            words.append(word)
    expanded = expand(words)
    if not permitted:
        _refuse_unsupported(words)
    return expanded


def _refuse_unsupported(words: Iterable[str]) -> None:
    """Refuse words without a target that XLA accepts."""
    refused = []
    for word in words:
        if not any(_row(target).xla for target in expand(word)):
            refused.append(word)
    if refused:
        names = ", ".join(refused)
        raise RequestError(
            f"The XLA in published wheels rejects {names} at run time: jax would not see"
            " these GPUs.",
            hint=(
                f"Choose from {', '.join(lists()['compiler-supported'])}, or append"
                f" {UNSUPPORTED!r} to the list to build the wheels regardless."
            ),
        )


def _native() -> tuple[str, ...]:
    """Return the targets of the GPUs in the topology of amdkfd, without features."""
    nodes = [(node, kfd.gfx_name(facts)) for node, facts in kfd.gpu_nodes(kfd.TOPOLOGY)]
    if not nodes:
        hint = (
            "Name the targets, or run this on a machine with the amdgpu driver;"
            " `ci_build doctor` reports details."
        )
        raise MachineError(
            f"{NATIVE!r} names the GPUs of this machine, but {kfd.TOPOLOGY} lists"
            " none.",
            hint=hint,
        )
    if unknown := [str(node) for node, name in nodes if not name]:
        raise MachineError(
            f"These GPUs have no gfx target: {', '.join(unknown)}.",
            hint="Name the targets.",
        )
    return tuple(dict.fromkeys(name for _, name in nodes))


def in_order(targets: Iterable[GfxTarget]) -> tuple[GfxTarget, ...]:
    """Return the targets in natural order."""
    return tuple(sorted(targets, key=sort_key))


def warnings_for(targets: Iterable[GfxTarget]) -> tuple[Finding, ...]:
    """Return a warning about the targets that XLA rejects at run time; empty if XLA accepts all."""
    refused = [str(target) for target in in_order(targets) if not _row(target).xla]
    if not refused:
        return ()
    accepted = ", ".join(lists()["compiler-supported"])
    warning = Finding(
        code="target-outside-xla-list",
        severity=Severity.WARNING,
        message=(
            "XLA rejects these targets at run time, so their code is never used:"
            f" {', '.join(refused)}."
        ),
        remedy=f"Omit them, or choose from {accepted}.",
    )
    return (warning,)


def processors_of(targets: Iterable[GfxTarget]) -> tuple[str, ...]:
    """Return the processors that run the code of the targets, in natural order."""
    names: set[str] = set()
    for target in targets:
        names |= set(_row(target).covers)
    return tuple(sorted(names, key=sort_key))


def index_of(targets: Sequence[GfxTarget] | None) -> str:
    """Return the name of the index of a set for these targets; None means all."""
    return MULTI_ARCH if targets is None else family_of(targets)


def family_of(targets: Iterable[GfxTarget]) -> str:
    """Return the index for a set of these targets.

    The per-family index that contains all of them, or multi-arch.
    """
    processors = set(processors_of(targets))
    families = load_table().families
    for name in load_table().indexes:
        if processors and processors <= set(families[name]):
            return name
    return MULTI_ARCH


def families_equal_to(targets: Iterable[GfxTarget]) -> tuple[str, ...]:
    """Return the families of exactly these targets, shortest name first.

    None if a target has a feature suffix.
    """
    wanted = set(map(str, targets))
    families = load_table().families
    names = [name for name, members in families.items() if set(members) == wanted]
    return tuple(sorted(names, key=lambda name: (len(name), name)))


def is_default(targets: Iterable[GfxTarget]) -> bool:
    """Return whether the targets are exactly those of the default wheel set."""
    return {str(target) for target in targets} == set(lists()["default-wheels"])


def for_bazel(targets: Iterable[GfxTarget]) -> str:
    """Return the value of TF_ROCM_AMDGPU_TARGETS."""
    return ",".join(map(str, in_order(targets)))


def for_aiter(targets: Iterable[GfxTarget]) -> str:
    """Return the value of AITER's GPU_ARCHS.

    The processors that AITER has kernels for, empty for none.
    """
    known = [target for target in in_order(targets) if _row(target).aiter]
    return ";".join(dict.fromkeys(target.processor for target in known))


def _concrete() -> tuple[str, ...]:
    return tuple(
        name for name, row in load_table().targets.items() if row.covers == (name,)
    )


@functools.cache
def _vocabulary() -> Mapping[str, tuple[str, ...]]:
    """Return the processors of every word that a request may contain."""
    return {
        **load_table().families,
        DEFAULT: lists()["default-wheels"],
        ALL: _concrete(),
    }


def _row(target: GfxTarget) -> TargetInfo:
    if target.processor not in load_table().targets:
        raise _unknown(target.processor)
    return load_table().targets[target.processor]


def _processors(name: str) -> tuple[str, ...]:
    """Return the processors of one word.

    Letter case is ignored if that gives a single match and no match is exact.
    """
    vocabulary = _vocabulary()
    if name in vocabulary:
        return vocabulary[name]
    by_case = [other for other in vocabulary if other.lower() == name.lower()]
    if len(by_case) != 1:
        raise _unknown(name)
    return vocabulary[by_case[0]]


def _unknown(name: str) -> UnknownTargetError:
    lower = {other.lower(): other for other in _vocabulary()}
    longer = [other for other in lower if other.startswith(name.lower())]
    near = difflib.get_close_matches(name.lower(), lower, n=4)
    names = [lower[other] for other in dict.fromkeys([*longer, *near])]
    hint = "See `ci_build targets`."
    if names:
        hint = f"Did you mean {', '.join(names[:4])}?"
    return UnknownTargetError(
        f"{name!r} is neither a gfx target nor a family.", hint=hint
    )


def _checked(target: GfxTarget) -> GfxTarget:
    """Return the target.

    Refuse features that its processor lacks, and features that are named twice.
    """
    names = [feature[:-1] for feature in target.features]
    supported = _row(target).features
    if lacking := sorted(set(names) - set(supported)):
        hint = "Write it without a suffix."
        if supported:
            hint = f"Its features are {', '.join(supported)}."
        raise RequestError(
            f"{target.processor} has no feature {', '.join(lacking)}.", hint=hint
        )
    if len(names) != len(set(names)):
        raise RequestError(
            f"{target} names one feature twice.",
            hint="Write each feature once, with + or -.",
        )
    if no_gpu := no_such_gpu(target):
        hint = f"Name {target.processor} without it."
        raise RequestError(f"{target} is no target: {no_gpu}.", hint=hint)
    return target


def no_such_gpu(target: GfxTarget) -> str:
    """Return why no GPU runs the code of a target, without a full stop; empty if one does."""
    row = load_table().targets.get(target.processor)
    always = row.always if row else ()
    off = [feature for feature in always if f"{feature}-" in target.features]
    return f"no GPU is {target}: {off[0]} is always on" if off else ""


def _refuse_ambiguity(targets: Iterable[GfxTarget]) -> None:
    """Refuse IDs of one processor unless all of them set the same features."""
    features: dict[str, tuple[GfxTarget, set[str]]] = {}
    for target in in_order(targets):
        names = {feature[:-1] for feature in target.features}
        first, expected = features.setdefault(target.processor, (target, names))
        if names != expected:
            raise RequestError(
                f"{first} and {target} cannot be in one wheel: the GPU could run both.",
                hint=(
                    "Give every variant of a processor the same features, or name it"
                    " once without a suffix."
                ),
            )
