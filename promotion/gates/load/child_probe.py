"""One look at a piece of a wheel in a process of its own: whatever it does to that process is a finding."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.errors import ProcessError
from core.model import Finding
from core.process import Runner
from promotion.gates.common.gate import error
from promotion.gates.common.site import Site

_CHILD = Path(__file__).with_name("load_child.py")
_SECONDS = 180.0
_SAID = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """A question for `load_child.py`.

    Attributes:
        question: one of its QUESTIONS.
        about: its arguments.
        name: for people.
        member: the file inside the wheel that it looks at, where it is one.
    """

    question: str
    about: tuple[str, ...]
    name: str
    member: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeResult:
    """What came of it.

    Attributes:
        values: the child's answer, empty when there was none.
        findings: why there was none.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    stderr: str = ""
    findings: tuple[Finding, ...] = ()


def ask(
    runner: Runner, site: Site, env: Mapping[str, str], look: Probe, *, child: Path = _CHILD, seconds: float = _SECONDS
) -> ProbeResult:
    """Ask a process of its own; death, silence and taking too long are findings.

    Args:
        env: changes to the environment.
        child: the program that answers.
        seconds: how long it may take.
    """
    argv = (*site.isolated, str(child), look.question, *look.about)
    changes = {**env, "TF_CPP_MIN_LOG_LEVEL": "0"}  # jaxlib logs the PJRT API versions as information
    try:
        done = runner.run(argv, env=changes, check=False, timeout=seconds)
    except ProcessError as problem:
        return _none("look-hangs", look, f"did not end: {problem.message}")
    try:
        values = json.loads(done.stdout.rstrip("\n").rpartition("\n")[2])
    except ValueError:
        values = None
    if done.returncode != 0 or not isinstance(values, dict):
        last = " ".join(done.stderr.split())[-_SAID:]
        return _none("look-died", look, f"ended with {how_it_ended(done.returncode)}; last words: {last or 'none'}")
    return ProbeResult(values=values, stderr=done.stderr)


def how_it_ended(returncode: int) -> str:
    """An exit status in words, such as `signal SIGSEGV`."""
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = str(-returncode)
    return f"signal {name}" + (" (killed, for example because memory ran out)" if name == "SIGKILL" else "")


def _none(code: str, look: Probe, what: str) -> ProbeResult:
    text = f"{look.name} {what}."
    remedy = "Find out what does that to a process; a module that was built for another Python or ROCm may."
    return ProbeResult(findings=(error(code, text, remedy, member=look.member),))
