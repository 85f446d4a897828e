"""Process of one step of a kernel build, started by ninja: `python -m kernels.step_process SPEC.json`.

It runs one compiler, checks the output and stores it. Failed output is discarded.
"""

from __future__ import annotations

import json
import os
import re
import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from core.errors import CiBuildError, KernelError
from core.model import GfxTarget
from core.process import HostRunner, render
from core.targets import machs
from kernels import timed
from kernels.checks import code_problems, library_problems
from kernels.link import prepare
from kernels.store import Cost, KernelStore
from wheelkit.gpu.code_object import HEAD_SIZE, code_object_problem

_TAIL = 30
_DROPPED = re.compile(r"warning: .*(unused|ignor|unknown|unsupported|not supported)")


def main(path: str) -> int:
    """Carry out the step of a spec file; failures are printed to standard output, which ninja shows."""
    spec = json.loads(Path(path).read_text(encoding="utf-8"))
    try:
        run(spec)
    except CiBuildError as error:
        where = f"{spec['module']}, {spec['target']}" if spec["target"] else spec["module"]
        lines = [f"failed: {spec['label']} ({where})", f"command: {render(spec['argv'])}", *error.message.splitlines()]
        print("\n  ".join(lines))  # noqa: T201
        return 1
    return 0


def run(spec: Mapping[str, Any]) -> None:
    """Compile, check and store.

    Raises:
        KernelError: the compiler failed or ignored an option, or the output does not meet its checks.
    """
    store = KernelStore(Path(spec["store"]))
    with store.scratch() as name:
        folder = Path(name) / "made"
        folder.mkdir()
        out = folder / spec["name"]
        argv = [word.replace("{out}", str(out)) for word in spec["argv"]]
        if spec.get("link"):
            parts = Path(name) / "parts"
            parts.mkdir()
            argv += prepare(spec["link"], parts)
        done = HostRunner(dict(os.environ)).run(argv, env=spec["environment"], check=False)
        errors, seconds = timed.split(done.stderr) if spec["wrapped_mb"] else (done.stderr, 0.0)
        cost = Cost(seconds=seconds, memory_mb=spec["wrapped_mb"]) if seconds else measured()
        said = f"{done.stdout}\n{errors}".replace(str(out), spec["name"])
        if done.returncode or not out.is_file():
            raise KernelError(f"exit code {done.returncode}\n{_tail(said)}")
        # A flag that the compiler ignores with a warning would change the code unnoticed.
        if _DROPPED.search(said):
            raise KernelError(f"the compiler ignored an option\n{_tail(said)}")
        if problems := check(out, spec["label"], spec["checks"]):
            raise KernelError("\n".join(problems))
        store.keep(spec["key"], folder, spec["name"], label=spec["label"], cost=cost)


def measured() -> Cost:
    """Return the cost of the one command that this process ran."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(seconds=round(used.ru_utime + used.ru_stime, 2), memory_mb=max(1, used.ru_maxrss >> 10))


def check(out: Path, label: str, checks: Mapping[str, Any]) -> list[str]:
    """Return the problems of the output."""
    problems: list[str] = []
    if "exports" in checks:
        alone = checks.get("alone", False)
        problems += library_problems(out, label, checks["exports"], checks["sonames"], alone=alone)
    if "target" in checks and "kernels" not in checks:
        clause = code_object_problem(out.read_bytes()[:HEAD_SIZE], GfxTarget.parse(checks["target"]), machs())
        problems += [f"{label} {clause}"] if clause else []
    if "kernels" in checks:
        problems += code_problems(out.read_bytes(), label, checks["target"], checks["kernels"])
    size, most = out.stat().st_size, checks.get("max_size", 0)
    if most and size > most:
        problems.append(f"{label} has {size} bytes, more than the {most} of modules.toml")
    return problems


def _tail(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-_TAIL:])


if __name__ == "__main__":
    arguments: Sequence[str] = sys.argv[1:]
    sys.exit(main(*arguments))
