"""Text of facts, problems and remedies for one screen."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from ci_build.doctor.diagnosis import Facts, Problem
from ci_build.doctor.installed_rocms import InstalledRocm
from core.model import Severity

_WIDTH = 110
"""Most columns of a line, which a narrower terminal reduces."""


def show(facts: Facts, problems: Sequence[Problem], width: int | None = None) -> str:
    """Return the facts, and the problems with their remedies, as text.

    Args:
        width: columns of the terminal; None for no terminal.
    """
    width = min(_WIDTH, width or _WIDTH)
    lines = [_wrapped(text, f"{name:9} ", width) for name, text in _rows(facts)]
    errors = [problem for problem in problems if problem.severity is Severity.ERROR]
    warnings = [
        problem for problem in problems if problem.severity is not Severity.ERROR
    ]
    lines += ["", f"{len(errors) or 'Nothing'} wrong{':' if errors else '.'}"]
    for number, problem in enumerate(errors, 1):
        lines += _problem(f"{number}. ", problem, width)
    if warnings:
        lines.append("Warnings:")
        for problem in warnings:
            lines += _problem("-  ", problem, width)
    return "\n".join(lines)


def _wrapped(text: str, mark: str, width: int) -> str:
    # Do not break paths, URLs and names of packages.
    indent = " " * len(mark)
    return textwrap.fill(
        text,
        width,
        initial_indent=mark,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _problem(mark: str, problem: Problem, width: int) -> Iterator[str]:
    yield _wrapped(problem.message, mark, width)
    # Commands are not wrapped, so that users can copy them.
    yield from (f"     {command}" for command in problem.commands)


def _rows(facts: Facts) -> Iterator[tuple[str, str]]:
    machine = facts.machine
    python = facts.python
    where = (
        f"{machine.distribution},"
        f" {' '.join((machine.kernel[0], machine.kernel[2], machine.kernel[1]))}"
    )
    inside = f", in a container ({machine.container})" if machine.container else ""
    yield (
        "Machine",
        (
            f"{where},"
            f" {machine.libc or 'no glibc'}{inside}{', WSL' if machine.wsl else ''}"
        ),
    )
    yield (
        "Driver",
        f"amdgpu {machine.driver}" if machine.driver else "amdgpu is not loaded",
    )
    yield "GPU", _gpus(facts)
    if machine.kfd or machine.render:
        yield "Access", _access(facts)
    yield "ROCm", "; ".join(map(_rocm, facts.trees.found)) or "not found"
    kind = (
        " (virtual environment)"
        if python.virtual
        else " (of the operating system)"
        if python.managed
        else ""
    )
    yield (
        "Python",
        (
            f"{python.version}"
            f" {python.executable}{kind}{'' if python.pip else ', without pip'}"
        ),
    )
    yield (
        "Packages",
        ", ".join(f"{p.name} {p.version}" for p in facts.packages.installed.values())
        or "no jax",
    )
    for pjrt in facts.packages.native("pjrt"):
        yield (
            "",
            f"{pjrt.name} has code for {', '.join(pjrt.targets) or 'unknown targets'}",
        )
    choice = facts.choice
    fits = f"{choice.about}{f' from {choice.index}' if choice.index else ''}"
    yield (
        "Fits",
        (
            fits
            if not facts.asked_index or facts.fitting
            else f"no set of {facts.asked_index}"
        ),
    )


def _rocm(rocm: InstalledRocm) -> str:
    how = "" if rocm.layout == rocm.folder else f" ({rocm.layout.partition('=')[0]})"
    return f"{rocm.shown_version} in {rocm.folder}{how}"


def _gpus(facts: Facts) -> str:
    kinds = Counter(
        (
            gpu.name or "AMD GPU of unknown kind",
            gpu.product,
            f"{gpu.memory / 2**30:.0f} GiB each" if gpu.memory else "",
            "" if gpu.visible else f"hidden by {facts.machine.mask or 'a mask'}",
        )
        for gpu in facts.machine.gpus
    )
    texts = []
    for (name, *more), count in kinds.items():
        about = "; ".join(filter(None, more))
        texts.append(f"{count} x {name}{f' ({about})' if about else ''}")
    if texts:
        return ", ".join(texts)
    cards = facts.machine.cards
    return (
        f"none reported by the driver; {cards} from AMD on the PCI bus"
        if cards
        else "no AMD GPU"
    )


def _access(facts: Facts) -> str:
    alike: dict[tuple[bool, str, int], list[str]] = {}
    for device in filter(None, (facts.machine.kfd, *facts.machine.render)):
        alike.setdefault((device.usable, device.group, device.mode), []).append(
            device.path
        )
    return "; ".join(
        f"{paths[0]}{f' and {len(paths) - 1} more' if len(paths) > 1 else ''} "
        f"{'usable' if usable else 'NOT usable'} (group {group}, mode {mode:04o})"
        for (usable, group, mode), paths in alike.items()
    )
