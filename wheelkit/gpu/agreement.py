"""Agreement of a bundle's code objects: properties of a kernel that come from its source, and not from the target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

_FIELDS = (
    ".max_flat_workgroup_size", ".reqd_workgroup_size", ".uniform_work_group_size", ".kind", ".kernarg_segment_align",
)  # fmt: skip
"""Metadata that launch bounds, attributes and argument types in the source determine."""
_FLOAT_MODE = 0xFF << 12
_WORK_GROUP_IDS = 0b111 << 7


class KernelTraits(NamedTuple):
    """A kernel of one code object: its metadata, and compute_pgm_rsrc1 and 2 of its descriptor.

    Attributes:
        body: whether the kernel has a body; compilers leave it out where a target never runs the kernel.
    """

    metadata: Mapping[str, Any]
    rsrc1: int
    rsrc2: int
    body: bool


def disagreements(kernels: Mapping[str, Mapping[str, KernelTraits]]) -> Iterator[tuple[str, str, str]]:
    """Yield a target, the code of a finding and a clause for each kernel that differs from most other targets.

    Args:
        kernels: target -> kernel -> traits.
    """
    first: dict[str, KernelTraits] = {}
    odd: dict[str, None] = {}
    for held in kernels.values():
        for name, traits in held.items():
            if _differ(first.setdefault(name, traits), traits):
                odd[name] = None
    for name in odd:
        yield from _difference(name, {target: held[name] for target, held in kernels.items() if name in held})


def argument_counts(kernels: Mapping[str, Mapping[str, KernelTraits]]) -> Mapping[str, int]:
    """Return the number of arguments of each kernel, which is the same for every target.

    Args:
        kernels: target -> kernel -> traits.
    """
    counts: dict[str, int] = {}
    for held in kernels.values():
        for name, traits in held.items():
            if name not in counts:
                counts[name] = len(_arguments(traits))
    return counts


def _differ(one: KernelTraits, two: KernelTraits) -> bool:
    """Return whether properties of two targets differ, which is rare: without building a list of them."""
    get, other = one.metadata.get, two.metadata.get
    return (
        [*map(get, _FIELDS)] != [*map(other, _FIELDS)]
        or (get(".args") != other(".args") and _arguments(one) != _arguments(two))
        or bool((one.rsrc1 ^ two.rsrc1) & _FLOAT_MODE)
        or (one.body and two.body and bool((one.rsrc2 ^ two.rsrc2) & _WORK_GROUP_IDS))
    )


def _difference(name: str, found: Mapping[str, KernelTraits]) -> Iterator[tuple[str, str, str]]:
    """Yield the first property in which a target differs from the most common value."""
    for code, field, values in _properties(found):
        usual = max(values, key=lambda target: sum(values[target] == value for value in values.values()), default="")
        for target in values:
            if values[target] != values[usual]:
                yield target, code, f"has kernel {name} with {field} {values[target]}, but {values[usual]} for {usual}"
                return


def _properties(found: Mapping[str, KernelTraits]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield for each property the code of a finding, its name, and its values by target."""
    for field in _FIELDS:
        yield "kernel-metadata-wrong", field, {t: traits.metadata.get(field) for t, traits in found.items()}
    arguments = {target: _arguments(traits) for target, traits in found.items()}
    yield "kernel-metadata-wrong", "number of arguments", {target: len(held) for target, held in arguments.items()}
    for number in range(max(map(len, arguments.values()))):
        yield "kernel-metadata-wrong", f"argument {number}", {t: held[number] for t, held in arguments.items()}
    code = "kernel-descriptor-wrong"
    yield code, "float mode", {t: traits.rsrc1 & _FLOAT_MODE for t, traits in found.items()}
    yield code, "work-group IDs", {t: traits.rsrc2 & _WORK_GROUP_IDS for t, traits in found.items() if traits.body}


def _arguments(traits: KernelTraits) -> Sequence[Mapping[str, Any]]:
    """Return the arguments in the source; compilers add hidden ones where a target needs them."""
    return [item for item in traits.metadata.get(".args", ()) if not item[".value_kind"].startswith("hidden_")]
