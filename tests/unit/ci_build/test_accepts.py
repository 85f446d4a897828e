"""Commands of other projects stay valid, and invalid ones are reported."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ci_build.cli import main, run
from ci_build.cli.commands.accepts import refusal
from core.errors import DriftError
from core.model import to_json
from promotion.policy.families import Trigger, load_families
from promotion.policy.jobs import job_matrix
from tests.support.wheel_sets import make_set

ROOT = Path(__file__).resolve().parents[3]
PAGES = [page for page in sorted((ROOT / "docs").glob("*.md")) if "```console" in page.read_text()]
DOWNSTREAM = ROOT / "tests" / "data" / "downstream.yml"


def accepts(*files: Path) -> int:
    return run(["accepts", *map(str, files)])


def test_accepts_takes_commands_of_downstream_workflow(capsys: pytest.CaptureFixture[str]) -> None:
    assert accepts(DOWNSTREAM, ROOT / "README.md", *PAGES) == 0, capsys.readouterr().out
    (number,) = re.findall(r"^([0-9]+) commands, none would be refused$", capsys.readouterr().out, re.MULTILINE)
    assert int(number) >= 30


def test_matrix_has_the_keys_that_workflows_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taken = {*re.findall(r"matrix\.(\w+)", DOWNSTREAM.read_text())}
    assert taken == {"name", "runs_on", "minutes", "argv"}
    for when in Trigger:
        made = job_matrix(load_families(), when=when, wheel_set=make_set([]), jax_tests="URL@c")
        jobs, merges = to_json(made.jobs), to_json(made.merges)
        assert all(taken <= job.keys() for job in jobs)
        assert all({"name", "argv"} <= merge.keys() for merge in merges)
        (tmp_path / f"{when}.json").write_text(json.dumps({"include": jobs, "merge": merges}))
    assert accepts(*tmp_path.iterdir()) == 0, capsys.readouterr().out
    nightly = tmp_path / f"{Trigger.NIGHTLY}.json"
    nightly.write_text(nightly.read_text().replace('"gate", "merge"', '"gate", "merged"'))
    assert accepts(nightly) == DriftError.exit_code


def test_accepts_checks_builds_of_matrix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["matrix", "--rocm-versions=7.10.0", "--families=gfx94X-dcgpu", "--python-versions=3.12"]) == 0
    printed = tmp_path / "builds.json"
    printed.write_text(capsys.readouterr().out)
    assert accepts(printed) == 0
    printed.write_text(printed.read_text().replace("--payload=", "--payment="))
    assert accepts(printed) == DriftError.exit_code
    assert "No such option '--payment'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("python3 build/ci_build matrix tests SET --ref main", "No such option '--ref'"),
        ("python3 build/ci_build matrix tests SET --when yearly", "'yearly' is not one of"),
        ("python3 build/ci_build matrix tests", "Missing argument"),
        ("python3 build/ci_build policy check SET SET", "does not accept SET"),
        ("python3 build/ci_build gate device SET --retries many", "'many' is not a valid integer"),
        ("- run: ci_build gate devices SET", "No such command 'devices'. Did you mean 'device'?"),
        ("  - run: A=1 .venv/bin/python build/ci_build --gfx 1 targets", "No such option '--gfx'"),
        ("cd jax && python3 build/ci_build index", "the name of a command is missing"),
        ("ci_build matrix tests --when=nightly", "Missing argument"),
        ("$ ci_build gate devices SET", "No such command 'devices'"),
        ('A=$B C="$D" ci_build gate devices SET', "No such command 'devices'"),
        ("- run: ${{ env.python }} build/ci_build gate devices SET", "No such command 'devices'"),
        ("if ! ci_build promote; then exit 1; fi", "Missing argument"),
        ("time env A=1 ci_build kernels merge", "Missing argument"),
        ('ci_build yank SET --reason "slow; wrong" --how', "No such option '--how'"),
        ('ci_build yank "$SET"', "Missing option '--reason'"),
        ("ci_build stage $SET --dry-run --now", "No such option '--now'"),
        ("ci_build gate device SET \\\n  --platform rocm \\\n  --no-such", "No such option '--no-such'"),
    ],
)
def test_accepts_reports_refused_command_with_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, why: str
) -> None:
    file = tmp_path / "workflow.yml"
    file.write_text(f"jobs:\n{line}\n      - run: ci_build targets\n")
    assert accepts(file) == DriftError.exit_code
    said = capsys.readouterr()
    assert said.out.startswith(f"{file}:2: ")
    assert why in said.out
    assert "1 of 2 commands would be refused" in said.err


@pytest.mark.parametrize(
    "line",
    [
        "ci_build matrix tests ${{ needs.a.outputs.set }} --when ${{ inputs.when }}",
        'ci_build matrix tests "$SET" --when=$WHEN | tee tests.json > other.json',
        "ci_build gate device SET --retries $N  # so often",
        "ci_build inspect /there/is/no/such.whl",
        "ci_build dist_wheels $MORE --dry-run",
        "ci_build dist_wheels ${{ inputs.more }}",
        'ci_build gate structure "$@"',
        'ci_build targets "${options[@]}"',
        "ci_build gate structure $(ls dist) --redo",
        "ci_build ${{ inputs.command }} --redo",
        'ci_build "$COMMAND" --redo',
        "ci_build yank SET $REASON",
        'ci_build yank SET --reason "slow; wrong"',
        'ci_build yank SET --reason "slow\n  and wrong"',
        "ci_build kernels build --targets gfx942 --units '_n(64|128)_'",
        "ci_build gate device --help",
        "ci_build -h",
        "ci_build targets # as it was; ci_build goals",
    ],
)
def test_accepts_skips_values_that_are_filled_in_later(tmp_path: Path, line: str) -> None:
    file = tmp_path / "workflow.yml"
    file.write_text(f"{line}\n")
    assert accepts(file) == 0


@pytest.mark.parametrize(
    ("text", "status"), [("nothing here", 2), ('{"include": 1}', 6), ('{"include": []}', 2), ("\0\udcff", 6)]
)
def test_accepts_refuses_file_without_commands(tmp_path: Path, text: str, status: int) -> None:
    file = tmp_path / "file"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert accepts(file) == status
    assert accepts(tmp_path / "missing") == 6


def test_accepts_can_check_every_command() -> None:
    for name in main.list_commands(None):  # type: ignore[arg-type]
        assert "No such" not in refusal(main, [name])
