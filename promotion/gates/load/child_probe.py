"""Run one probe of a wheel in a separate process; a crash or hang of that process becomes a finding."""

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
_TAIL_CHARACTERS = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """A probe that `load_child.py` runs.

    Attributes:
        function: name of the probe function, see PROBES there.
        arguments: its arguments.
        name: name of the check.
        member: file inside the wheel, if the probe is about one.
    """

    function: str
    arguments: tuple[str, ...]
    name: str
    member: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeResult:
    """Result of a probe.

    Attributes:
        values: answer of the child; empty when there is none.
        findings: reason for a missing answer.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    stderr: str = ""
    findings: tuple[Finding, ...] = ()


def run_probe(
    runner: Runner, site: Site, env: Mapping[str, str], probe: Probe, *, child: Path = _CHILD, seconds: float = _SECONDS
) -> ProbeResult:
    """Run a probe in a separate process; a crash, a missing answer or a timeout is a finding.

    Args:
        env: changes to the environment.
        child: program that runs the probe.
        seconds: time limit.
    """
    argv = (*site.isolated, str(child), probe.function, *probe.arguments)
    changes = {**env, "TF_CPP_MIN_LOG_LEVEL": "0"}  # jaxlib logs the PJRT API versions as information
    try:
        completed = runner.run(argv, env=changes, check=False, timeout=seconds)
    except ProcessError as problem:
        return _no_answer("look-hangs", probe, f"did not end: {problem.message}")
    try:
        values = json.loads(completed.stdout.rstrip("\n").rpartition("\n")[2])
    except ValueError:
        values = None
    if completed.returncode != 0 or not isinstance(values, dict):
        last = " ".join(completed.stderr.split())[-_TAIL_CHARACTERS:]
        return _no_answer(
            "look-died", probe, f"ended with {how_it_ended(completed.returncode)}; last output: {last or 'none'}"
        )
    return ProbeResult(values=values, stderr=completed.stderr)


def how_it_ended(returncode: int) -> str:
    """Describe an exit status, such as `signal SIGSEGV`."""
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = str(-returncode)
    return f"signal {name}" + (" (killed, for example because memory ran out)" if name == "SIGKILL" else "")


def _no_answer(code: str, probe: Probe, what: str) -> ProbeResult:
    text = f"{probe.name} {what}."
    remedy = "Check that the module was built for this Python and ROCm, and debug the crash."
    return ProbeResult(findings=(error(code, text, remedy, member=probe.member),))
