"""Tables, goals and reports of the benchmarks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.measure import Goal, option_parser, report, table

GOALS = [
    Goal(what="faster", value=21.0, unit="x", limit=20, at_least=True),
    Goal(what="memory", value=101.0, unit=" MB", limit=100),
    Goal(what="for information", value=1.0),
]


def test_table_aligns_numbers_to_the_right() -> None:
    rows = [("one", 1.0, 100), ("another one", 20.25, "")]
    assert table(("case", "wall s", "MB"), rows).splitlines() == [
        "case         wall s   MB",
        "one            1.00  100",
        "another one   20.25",
    ]


def test_report_prints_and_writes_figures_and_judged_goals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--json", str(tmp_path / "figures.json")]
    assert report(option_parser("").parse_args(words), GOALS, "FIGURES", "ABOUT", rows=[1]) == 0
    head, _, figures, _, *lines = capsys.readouterr().out.splitlines()
    assert head.endswith(", ABOUT")
    assert figures == "FIGURES"
    assert [line.split()[0] for line in lines] == ["faster", "memory", "for"]
    assert lines[0].endswith("21.00x    (goal >= 20x)  met")
    assert lines[1].endswith("101.00 MB  (goal <= 100 MB)  MISSED")
    assert lines[2].endswith(" 1.00")
    body = json.loads((tmp_path / "figures.json").read_text())
    assert body["rows"] == [1]
    assert [goal["met"] for goal in body["goals"]] == [True, False, True]


@pytest.mark.parametrize(("goals", "status"), [(GOALS, 1), (GOALS[::2], 0)])
def test_check_fails_only_for_missed_goals(goals: list[Goal], status: int) -> None:
    assert report(option_parser("").parse_args(["--check"]), goals, "") == status
