"""The fault matrix: ways to break the published wheels, and which gate has to say what about each.

`python -m tests.support.faults` writes it into the README of the gates.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.faults import device_code, files, libraries

README = Path(__file__).parents[3] / "promotion" / "gates" / "README.md"
BEGIN, END = "<!-- fault matrix: begin -->", "<!-- fault matrix: end -->"

FAULTS = (*libraries.FAULTS, *device_code.FAULTS, *files.FAULTS)

TROUBLE = (
    (
        "a convolution aborts where there is no device",
        "compile: a known failure that names SIGABRT; the programs after it are compiled",
        "test_compile_real.py::test_known_trouble_of_0_12_0_is_known",
    ),
    (
        "kernels that only some targets have",
        "coverage: passes by the entries of `kernel_rules.toml`; `kernel-missing` without them",
        "test_adopt_real.py::test_0_12_needs_its_rules_and_nothing_else",
    ),
    (
        "unversioned symbols of std::filesystem",
        "abi: `unversioned-symbol-too-new`, a warning on wheels that others built",
        "test_abi_gate_real.py::test_the_trouble_of_0_12_0_is_told",
    ),
)
"""What is wrong with the published wheels of 0.12.0, what the gates say, and the integration test that shows it."""


def table() -> str:
    """The matrix as Markdown."""
    lines = ["| fault | how it is made | gate: finding |", "|---|---|---|"]
    for fault in FAULTS:
        found = ", ".join(
            f"{catch.gate}: `{catch.code}`" + (" (warning)" if catch.warns else "") for catch in fault.catches
        )
        lines.append(f"| {fault.name} | {fault.how} | {found} |")
    lines += ["", "No gate sees this; only a GPU does:", "", "| fault | how it is made |", "|---|---|"]
    lines += [f"| {fault.name} | {fault.how} |" for fault in device_code.BEYOND]
    lines += [
        "",
        "The published wheels of 0.12.0 bring trouble of their own:",
        "",
        "| trouble | gate: finding |",
        "|---|---|",
    ]
    lines += [f"| {trouble} | {said} |" for trouble, said, _ in TROUBLE]
    return "\n".join(lines)


def with_table(readme: str) -> str:
    """The text of the README with the matrix between its marks."""
    head, _, rest = readme.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{table()}\n{END}{tail}"
