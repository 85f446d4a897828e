"""The generated reference contains everything that the program has, and nothing else."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from ci_build.cli import SECTIONS, main
from ci_build.cli.command_help import project_keys, read_commands
from ci_build.cli.options.environment import OTHER_VARIABLES
from ci_build.cli.options.table import option_names
from ci_build.docs import reference, toml_files
from ci_build.docs.findings import finding_entries
from ci_build.docs.markdown import code, plain
from ci_build.docs.pages import navigation, write_pages
from ci_build.docs.request import CommandHelp, DocsRequest
from ci_build.docs.schema import SCHEMAS
from ci_build.docs.toml_files import ROOT, TOML_FILES, TomlFile
from core import errors
from core.errors import RequestError
from promotion.evidence.evidence import ENVIRONMENT
from promotion.evidence.test_results import UNWAIVED_FLAKE, TestVerdict
from promotion.gates.device.run import NOTE
from promotion.storage import keys
from wheelkit.findings import finding_kinds


@pytest.fixture(scope="module")
def commands() -> tuple[CommandHelp, ...]:
    return read_commands(main, SECTIONS)


@pytest.fixture(scope="module")
def request_(commands: tuple[CommandHelp, ...]) -> DocsRequest:
    return DocsRequest(commands=commands, project_keys=project_keys())


def leaves(group: click.Group, context: click.Context) -> Iterator[tuple[str, click.Command, click.Context]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        below = click.Context(command, info_name=name, parent=context)
        yield below.command_path.removeprefix("ci_build "), command, below
        if isinstance(command, click.Group):
            yield from leaves(command, below)


def test_every_command_option_and_argument_is_on_a_page(commands: tuple[CommandHelp, ...]) -> None:
    pages = [reference.commands_page(title, commands) for title in dict.fromkeys(item.section for item in commands)]
    text, missing = "\n".join(pages), []
    found = [*leaves(main, click.Context(main, info_name="ci_build", **main.context_settings))]
    assert len(found) > 70
    assert {"dist_wheels", "index serve", "images build manylinux"} <= {name for name, _, _ in found}
    for name, command, context in found:
        section = text.partition(f"\n## {plain(name)}\n")[2].partition("\n## ")[0]
        missing += [name] if not section else []
        for parameter in command.params:
            record = parameter.get_help_record(context)
            if isinstance(parameter, click.Option) and record and f"- {code(record[0])}" not in section:
                missing.append(f"{name} {record[0]}")
            if isinstance(parameter, click.Argument) and code(parameter.make_metavar(context)) not in section:
                missing.append(f"{name} {parameter.name}")
    assert missing == []


def test_commands_page_follows_the_program() -> None:
    group = click.Group("x", commands=[click.Command("kept", help="Keep *it*."), click.Command("gone")])
    sections = {"Build": {"kept, gone": None}}
    assert "## gone" in reference.commands_page("Build", read_commands(group, sections))
    del group.commands["gone"]
    text = reference.commands_page("Build", read_commands(group, sections))
    assert "## gone" not in text
    assert "Keep \\*it\\*." in text


def test_options_name_the_variable_that_sets_them(commands: tuple[CommandHelp, ...]) -> None:
    by_name = {command.name: {item.names: item.variable for item in command.options} for command in commands}
    build = by_name["dist_wheels"]
    assert {*build.values()} >= {f"CI_BUILD_{name.upper()}" for name in option_names()}
    (out,) = (variable for names, variable in build.items() if names.startswith("--out"))
    assert out == "CI_BUILD_OUT"
    assert by_name["compat"]["--out FILE"] == ""
    assert by_name["verify"]["--bucket DIR|URL"] == "CI_BUILD_BUCKET"
    assert by_name["cache ls"]["--cache-dir DIR"] == "CI_BUILD_CACHE_DIR"


def test_project_page_has_every_key_and_no_secret() -> None:
    text = reference.project_page(project_keys())
    assert [name for name in (*option_names(), *OTHER_VARIABLES) if f"| {code(name)} |" not in text] == [
        "ledger_key",
        "signing_key",
    ]


def test_exit_codes_page_has_every_kind_of_error() -> None:
    text = reference.exit_codes_page()
    kinds: list[Any] = [kind for kind in vars(errors).values() if isinstance(kind, type) and "exit_code" in vars(kind)]
    rows = {kind.exit_code: kind.__name__ for kind in kinds if kind is not errors.CiBuildError}
    assert len(rows) == len(kinds) - 1 > 20
    assert [number for number, name in rows.items() if f"| {number} | {code(name)} | " not in text] == []
    assert [number for number in reference.EXIT_CODES if f"| {number} |  | " not in text] == []


CALLS = ("error", "warning", "finding", "mild", "Finding")
PRODUCT = ("ci_build", "core", "kernels", "promotion", "wheelkit")
COMPUTED = {
    *(ENVIRONMENT, NOTE, UNWAIVED_FLAKE, "look-died", "look-hangs"),
    *(f"test-{verdict}" for verdict in (TestVerdict.FAILED, TestVerdict.FLAKY, TestVerdict.CRASHED)),
    *("compile-failed", "compile-crashed", "compile-hung", "compile-out-of-memory", "compile-not-run"),
}
"""Codes that no literal argument of these calls names."""


def codes_in_program() -> set[str]:
    """Return the codes of findings that the program creates: literal arguments of the functions that make them."""
    found = set[str]()
    for path in (path for top in PRODUCT for path in (ROOT / top).rglob("*.py")):
        text = path.read_text()
        if not any(f"{name}(" in text for name in CALLS):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
                given = [*node.args[:1], *(word.value for word in node.keywords if word.arg == "code")]
                found |= {
                    item.value for item in given if isinstance(item, ast.Constant) and isinstance(item.value, str)
                }
    return {code for code in found if " " not in code}


def test_findings_page_has_exactly_the_findings_of_the_program() -> None:
    entries = {entry.code: entry for rows in finding_entries().values() for entry in rows}
    described = {*entries} - {*finding_kinds()}
    assert described == codes_in_program() - {*finding_kinds()} | COMPUTED
    assert {*finding_kinds()} <= {*entries}
    text = reference.findings_page()
    for code_, entry in entries.items():
        section = text.partition(f"\n### {plain(code_)}\n")[2].partition("\n### ")[0]
        assert plain(entry.cause) in section
        assert plain(entry.remedy) in section


def test_findings_have_cause_remedy_and_known_severity() -> None:
    entries = [entry for rows in finding_entries().values() for entry in rows]
    wrong = [entry.code for entry in entries if not {*entry.severity.split(" or ")} <= {"error", "warning", "note"}]
    assert wrong == []
    assert [entry.code for entry in entries if not entry.cause.endswith(".")] == []
    small = {entry.cause.split()[0].rstrip(",") for entry in entries if entry.cause[0].islower()}
    assert small == {"jax", "jaxlib", "pjrt", "version.py"}
    silent = {entry.code for entry in entries if not entry.remedy and "error" in entry.severity}
    assert silent == set()


def test_toml_page_describes_every_file_of_the_program() -> None:
    listed = toml_of_product()
    assert {file.path for file in TOML_FILES} == listed
    text = reference.toml_page()
    for file in TOML_FILES:
        section = text.partition(f"\n## {file.path}\n")[2].partition("\n## ")[0]
        assert toml_files.comment_of(file) in section, file.path
        assert len([*toml_files.keys_of(file)]) > 0


def toml_of_product() -> set[str]:
    """Return the TOML files of the product, without golden lists, locks, tests and project files."""
    left_out = {"pyproject.toml", "kernels/pyproject.toml", "ci_build/docs/findings.toml"}
    found = {path.relative_to(ROOT).as_posix() for top in (*PRODUCT, "docker") for path in (ROOT / top).rglob("*.toml")}
    return {path for path in found if "/golden/" not in path and "/tests/" not in path} - left_out


def test_toml_keys_replace_chosen_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.toml").write_text(
        '# About x.\n#   a  text\nschema = 1\n[one.gates.abi]\ntier = "x"\n[two.gates.load]\nmay_skip = true\n'
        "[[two.row]]\nlist = [1]\n"
    )
    monkeypatch.setattr(toml_files, "ROOT", tmp_path)
    file = TomlFile(path="x.toml", names={"": "channel", "*.gates": "gate"})
    assert toml_files.comment_of(file) == "About x.\n  a  text"
    assert [*toml_files.keys_of(file)] == [
        ("schema", "integer", "1"),
        ("<channel>.gates.<gate>.tier", "string", "x"),
        ("<channel>.gates.<gate>.may_skip", "boolean", "true"),
        ("<channel>.row[].list", "array", "[1]"),
    ]


def test_toml_page_has_keys_that_policies_use() -> None:
    policy = next(file for file in TOML_FILES if file.path == "promotion/policy.toml")
    data = tomllib.loads((ROOT / policy.path).read_text())
    found = {name for name, _, _ in toml_files.keys_of(policy)}
    used = {key for channel in data.values() if isinstance(channel, dict) for key in channel}
    assert {key for key in used if not any(f"<channel>.{key}" in name for name in found)} == set()


def test_bucket_page_has_every_key() -> None:
    names = {*vars(keys.StagedSet), *vars(keys.ReleasedIndex), "nights_folder"}
    public = {name for name in names if not name.startswith("_")} - {"index", "digest"}
    rows = [*reference.bucket_keys()]
    assert len(rows) == len(public) + 3  # both classes have `root` and `simple`, and the documentation has a constant
    assert ("v2/INDEX/ledger/NUMBER.json", "Entry `number` of the ledger; the first is 1.") in rows
    assert (keys.DOCS, "The documentation site, which `ci_build docs` publishes.") in rows


def test_schemas_page_explains_every_field() -> None:
    text = reference.schemas_page()
    for name, make in SCHEMAS.items():
        section = text.partition(f"[{name}](schemas/{name})")[2].partition("\n## ")[0]
        assert [field for field in make()["properties"] if f"| {code(field)} | " not in section] == []
    assert "| `findings` | array of Finding |" in text
    assert "| `promoted` | PromotedSet or null | for a promotion, the set. |" in text
    assert "| `logs` | object of string |" in text
    assert "| `entries` | integer | number of the newest ledger entry. |" in text


def test_navigation_lists_every_page_once(request_: DocsRequest, tmp_path: Path) -> None:
    write_pages(request_, tmp_path)
    written = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.md"))
    listed = [
        page for section in navigation(request_) for rows in section.values() for row in rows for page in row.values()
    ]
    assert sorted(listed) == written
    assert [next(iter(section)) for section in navigation(request_)] == [
        *("Start", "How to", "Reference", "Explanation", "Contributors"),
    ]


def test_compatibility_page_is_listed_only_if_given(request_: DocsRequest, tmp_path: Path) -> None:
    assert "docs/compatibility.md" not in str(navigation(request_))
    given = DocsRequest(commands=request_.commands, compatibility=tmp_path / "none.md")
    assert "docs/compatibility.md" in str(navigation(given))
    (tmp_path / "pages").mkdir()
    with pytest.raises(RequestError, match=r"none\.md cannot be read: No such file or directory\."):
        write_pages(given, tmp_path / "pages")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a_b *c* [d]", r"a\_b \*c\* \[d\]"),
        ("`a_b|c` <x> | y", "`a_b|c` &lt;x> &#124; y"),
        ("a & b", "a &amp; b"),
    ],
)
def test_plain_shows_text_unchanged(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_code_keeps_backticks() -> None:
    assert code("a`b") == "``a`b``"
    assert code("`a`") == "`` `a` ``"


def test_compatibility_page_keeps_only_absolute_links(request_: DocsRequest, tmp_path: Path) -> None:
    (tmp_path / "x.md").write_text("# T\n\n[a](v2/x/evidence/) [b](https://x.example/v2/)\n")
    (tmp_path / "pages").mkdir()
    write_pages(DocsRequest(commands=request_.commands, compatibility=tmp_path / "x.md"), tmp_path / "pages")
    text = (tmp_path / "pages/docs/compatibility.md").read_text()
    assert text == "# T\n\na [b](https://x.example/v2/)\n"
