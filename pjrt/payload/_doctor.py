"""Facts and problems of a machine on one screen, or as JSON.

`python -m jax_plugins.xla_rocm7` and `ci_build doctor` run this module.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from . import _diagnosis, _facts, _gpus, _machine, _packages
from ._facts import Facts
from ._problems import ERROR, Problem

SICK = 1
"""Exit code if there is an error."""
_WIDTH = 110
"""Most columns of a line, which a narrower terminal reduces."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the facts and problems of this Python and machine; return the exit code."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {__package__}",
        description="Print what keeps jax from using the AMD GPUs of this machine.",
        epilog=f"Exit code: {SICK} if an error was found, otherwise 0.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--defaults", type=json.loads, default={}, help=argparse.SUPPRESS
    )
    options = parser.parse_args(arguments)
    facts = examine(os.environ, _packages.this_python(), options.defaults)
    problems = _diagnosis.all_problems(facts)
    if options.json:
        print(json.dumps(as_json(facts, problems), indent=2))  # noqa: T201
    else:
        width = shutil.get_terminal_size((_WIDTH, 24)).columns
        print(show(facts, problems, min(width, _WIDTH)))  # noqa: T201
    return SICK if any(item.severity == ERROR for item in problems) else 0


def examine(
    environ: Mapping[str, str],
    python: _packages.Python,
    defaults: Mapping[str, object],
) -> Facts:
    """Return the facts about this machine and the ROCm major that its loader would choose."""
    candidates = {
        major: _facts.collect(environ, python, major, defaults)
        for major in _facts.installed_majors(python.path)
    }
    if candidates:
        return candidates[_diagnosis.choose(candidates, need_gpu=True)]
    return _facts.collect(environ, python, defaults=defaults)


def as_json(facts: Facts, problems: Sequence[Problem]) -> dict[str, object]:
    """Return facts and problems as JSON values."""
    packages = {name: item.version for name, item in facts.packages.items()}
    return {
        "python": dataclasses.asdict(facts.python),
        "distribution": _distribution(),
        "machine": dataclasses.asdict(facts.machine),
        "rocm": [dataclasses.asdict(rocm) for rocm in facts.rocms],
        "packages": packages,
        "major": facts.major,
        "targets": facts.targets,
        "problems": [dataclasses.asdict(item) for item in problems],
    }


def show(facts: Facts, problems: Sequence[Problem], width: int) -> str:
    """Return the facts, and the problems with their remedies, as text."""
    lines = [_wrapped(text, f"{name:9} ", width) for name, text in _rows(facts)]
    errors = sum(item.severity == ERROR for item in problems)
    lines += ["", f"{errors or 'Nothing'} wrong{':' if errors else '.'}"]
    for number, item in enumerate(problems, 1):
        mark = f"{number}. " if item.severity == ERROR else f"-  {item.severity}: "
        lines.append(_wrapped(f"{item.sentence} [{item.code}]", mark, width))
        # Commands are not wrapped, so that users can copy them.
        if item.remedy:
            lines.append(f"     {item.remedy}")
    return "\n".join(lines)


def _wrapped(text: str, mark: str, width: int) -> str:
    # Do not break paths, URLs and names of packages.
    return textwrap.fill(
        text,
        width,
        initial_indent=mark,
        subsequent_indent=" " * len(mark),
        break_on_hyphens=False,
        break_long_words=False,
    )


def _rows(facts: Facts) -> Iterator[tuple[str, str]]:
    machine = facts.machine
    python = facts.python
    words = [_distribution(), machine.system, machine.libc or "no glibc"]
    if machine.container:
        words.append(f"in a container ({machine.container})")
    yield "Machine", ", ".join(words)
    yield "Driver", "amdgpu" if machine.driver else "amdgpu is not loaded"
    yield "GPU", _gpu_text(machine)
    devices = filter(None, (machine.kfd, *machine.render))
    access = [
        f"{device.path} {'usable' if device.usable else 'NOT usable'} ({device.group})"
        for device in devices
    ]
    yield "Access", ", ".join(access) or "no device"
    yield "ROCm", "; ".join(map(str, facts.rocms)) or "not found"
    yield "Python", f"{python.version} {python.executable}"
    packages = [f"{item.name} {item.version}" for item in facts.packages.values()]
    yield "Packages", ", ".join(packages) or "no jax"
    if facts.targets:
        yield "Targets", f"{', '.join(facts.targets)} in {facts.name}"


def _gpu_text(machine: _machine.Machine) -> str:
    counts = Counter(gpu.name or "AMD GPU of unknown kind" for gpu in machine.gpus)
    texts = [f"{count} x {name}" for name, count in counts.items()]
    hidden = len(machine.gpus) - len(machine.visible)
    if hidden:
        texts.append(f"{hidden} hidden")
    return ", ".join(texts) or "no AMD GPU"


def _distribution() -> str:
    text = _machine.text_of(Path(_gpus.ROOT, "etc/os-release"))
    for line in text.splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip("\"'")
    return "an unknown distribution"
