"""The fault matrix: ways to break the published wheels, and the gate and finding that detect each.

`python -m tests.support.faults` writes it to the README of the gates.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.faults import device_code, files, libraries

README = Path(__file__).parents[3] / "promotion" / "gates" / "README.md"
BEGIN, END = "<!-- fault matrix: begin -->", "<!-- fault matrix: end -->"

FAULTS = (*libraries.FAULTS, *device_code.FAULTS, *files.FAULTS)

PROBLEMS = (
    (
        "a convolution aborts without a device",
        "compile: a known failure that names SIGABRT; the programs after it are compiled",
    ),
    (
        "kernels that only some targets have",
        "coverage: passes with the entries of `kernel_rules.toml`; `kernel-missing` without them",
    ),
    ("unversioned symbols of std::filesystem", "abi: `unversioned-symbol-too-new`, a warning for adopted wheels"),
)
"""Problems of the published wheels of 0.12.0 and the findings of the gates."""


def table() -> str:
    """Return the matrix as Markdown."""
    lines = ["| fault | method | gate: finding |", "|---|---|---|"]
    for fault in FAULTS:
        findings = ", ".join(
            f"{catch.gate}: `{catch.code}`" + (" (warning)" if catch.warns else "") for catch in fault.catches
        )
        lines.append(f"| {fault.name} | {fault.how} | {findings} |")
    lines += ["", "Only a run on a GPU detects this:", "", "| fault | method |", "|---|---|"]
    lines += [f"| {fault.name} | {fault.how} |" for fault in device_code.BEYOND]
    lines += ["", "The published wheels of 0.12.0 have these problems:", "", "| problem | gate: finding |", "|---|---|"]
    lines += [f"| {problem} | {finding} |" for problem, finding in PROBLEMS]
    return "\n".join(lines)


def with_table(readme: str) -> str:
    """Return the text of the README with the matrix between its markers."""
    head, _, rest = readme.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{table()}\n{END}{tail}"
