"""The generated reference has every finding and exit code of the program, and no secret."""

from __future__ import annotations

import ast
import re
from itertools import chain

from ci_build.cli.command_help import project_keys
from ci_build.cli.options.environment import OTHER_VARIABLES
from ci_build.cli.options.table import option_names
from ci_build.docs import reference
from ci_build.docs.docs_pages import ROOT
from ci_build.docs.findings_page import finding_entries
from ci_build.docs.markdown import code, plain
from core import errors
from promotion.evidence.evidence import ENVIRONMENT
from promotion.evidence.test_results import FLAKE, TestVerdict
from promotion.gates.device.device_run import NOTE
from wheelkit.findings import finding_kinds


def test_project_page_has_every_key_and_no_secret() -> None:
    text = reference.project_page(project_keys())
    assert [
        name
        for name in (*option_names(), *OTHER_VARIABLES)
        if f"| {code(name)} |" not in text
    ] == [
        "ledger_key",
        "signing_key",
    ]


def test_exit_codes_page_has_every_kind_of_error_once() -> None:
    rows = re.findall(
        r"^\| (\d+) \| (.*?) \|", reference.exit_codes_page(), re.MULTILINE
    )
    kinds = dict(rows)
    assert len(kinds) == len(rows) > 24
    assert kinds["18"] == "`MachineError`"
    assert {*kinds} > {*map(str, reference.EXIT_CODES)}
    own = [
        kind
        for kind in vars(errors).values()
        if "exit_code" in getattr(kind, "__dict__", {})
    ]
    # Two kinds with one code would hide each other.
    assert len(own) == len(rows) - len(reference.EXIT_CODES) + 1


CALLS = ("error", "warning", "finding", "mild", "Finding")
PRODUCT = ("ci_build", "core", "kernels", "promotion", "wheelkit")
COMPUTED = {
    *(ENVIRONMENT, NOTE, FLAKE, "look-died", "look-hangs"),
    *(
        f"test-{verdict}"
        for verdict in (TestVerdict.FAILED, TestVerdict.FLAKY, TestVerdict.CRASHED)
    ),
    *(
        "compile-failed",
        "compile-crashed",
        "compile-hung",
        "compile-out-of-memory",
        "compile-not-run",
    ),
}
"""Codes that no literal argument of these calls names."""


def codes_in_program() -> set[str]:
    """Return the codes of findings that the program creates.

    Literal arguments of the functions that make them.
    """
    found = set[str]()
    for path in chain.from_iterable((ROOT / top).rglob("*.py") for top in PRODUCT):
        text = path.read_text()
        if not any(f"{name}(" in text for name in CALLS):
            continue
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in CALLS
            ):
                given = [
                    *node.args[:1],
                    *(word.value for word in node.keywords if word.arg == "code"),
                ]
                found |= {
                    item.value
                    for item in given
                    if isinstance(item, ast.Constant) and isinstance(item.value, str)
                }
    return {code for code in found if " " not in code}


def test_findings_page_has_exactly_the_findings_of_the_program() -> None:
    rows = chain.from_iterable(finding_entries().values())
    entries = {entry.code: entry for entry in rows}
    problems = {entry.code for entry in finding_entries()["Doctor"]}
    described = {*entries} - {*finding_kinds()} - problems
    assert described == codes_in_program() - {*finding_kinds()} | COMPUTED
    assert {*finding_kinds()} <= {*entries}
    text = reference.findings_page()
    for code_, entry in entries.items():
        section = text.partition(f"\n### {plain(code_)}\n")[2].partition("\n### ")[0]
        assert plain(entry.cause) in section
        assert plain(entry.remedy) in section
