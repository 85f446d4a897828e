"""Run one probe of a wheel in a separate process.

A crash or hang of that process becomes a finding.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Any

from core.errors import ProcessError
from core.frozen import frozen
from core.model import Finding
from core.process import Runner
from promotion.gates.common.gate_context import error, signal_name
from promotion.gates.common.gate_site import Site

_CHILD = Path(__file__).with_name("load_child.py")
_SECONDS = 180.0
_TAIL_CHARACTERS = 300


@frozen
class ProbeResult:
    """Result of a probe.

    Attributes:
        values: answer of the child; empty without an answer.
        findings: reason for a missing answer.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    stderr: str = ""
    findings: tuple[Finding, ...] = ()


AnswerCheck = Callable[[ProbeResult], Iterable[Finding]]
"""Function that yields the findings from an answer."""


@frozen
class Probe:
    """A probe that `load_child.py` runs.

    Attributes:
        function: name of the probe function in PROBES of `load_child.py`.
        arguments: arguments of the probe function.
        name: name of the check.
        wheel: file name of the wheel; empty for probes of several wheels.
        member: file inside the wheel; empty for other probes.
        check: function that yields the findings from the answer.
        child: program that runs the probe.
        env: changes to the environment in addition to those of all probes.
    """

    function: str
    arguments: tuple[str, ...]
    name: str
    wheel: str = ""
    member: str = ""
    check: AnswerCheck = lambda _answer: ()
    child: Path = _CHILD
    env: Mapping[str, str] = field(default_factory=dict)


def run_probe(
    runner: Runner, site: Site, env: Mapping[str, str], probe: Probe
) -> ProbeResult:
    """Run a probe in a separate process; a crash, a missing answer or a timeout is a finding.

    Args:
        env: changes to the environment.
    """
    argv = (*site.isolated, str(probe.child), probe.function, *probe.arguments)
    # jaxlib logs the PJRT API versions at level INFO.
    changes = {**env, **probe.env, "TF_CPP_MIN_LOG_LEVEL": "0"}
    values = None
    try:
        completed = runner.run(argv, env=changes, check=False, timeout=_SECONDS)
        with suppress(ValueError):
            values = json.loads(completed.stdout.rstrip("\n").rpartition("\n")[2])
        if completed.returncode == 0 and isinstance(values, dict):
            return ProbeResult(values=values, stderr=completed.stderr)
        last = " ".join(completed.stderr.split())[-_TAIL_CHARACTERS:] or "none"
        code = "look-died"
        what = f"ended with {how_it_ended(completed.returncode)}; last output: {last}"
    except ProcessError as problem:
        code = "look-hangs"
        what = f"did not end: {problem.message}"
    remedy = (
        "Check that the module was built for this Python and ROCm, and debug the crash."
    )
    return ProbeResult(
        findings=(error(code, f"{probe.name} {what}.", remedy, member=probe.member),)
    )


def how_it_ended(returncode: int) -> str:
    """Describe an exit status, such as `signal SIGSEGV`."""
    if returncode >= 0:
        return f"exit code {returncode}"
    name = signal_name(-returncode).removeprefix("signal ")
    return f"signal {name}" + (
        " (killed, for example because memory ran out)" if name == "SIGKILL" else ""
    )


def shortened(text: str) -> str:
    """Return the beginning of an error on one line, without a full stop."""
    return " ".join(text.split()).removesuffix(".")[:500]
