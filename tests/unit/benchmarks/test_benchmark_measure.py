"""Tables, figures, load and reports of the benchmarks."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks import measure
from benchmarks.measure import Cost, Figure, Load, compared, option_parser, report, table

FIGURES = [
    Figure(what="faster", ours=1.0, stock=19.0, unit="s", times=20, limit=0.5),
    Figure(what="memory", ours=99.0, unit="MB", most=100),
    Figure(what="for information", ours=1.0),
]
SLOW = [FIGURES[0], Figure(what="memory", ours=101.0, unit="MB", most=100)]


@pytest.fixture(autouse=True)
def _cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process run on one of two CPUs, both idle, and have used no CPU time."""
    monkeypatch.setattr(measure, "STAT", tmp_path / "stat")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    monkeypatch.setattr(os, "times", lambda: (0.0,) * 5)
    _write_stat(idle=1000)


def _write_stat(*, user: int = 0, idle: int = 0, iowait: int = 0, steal: int = 0) -> None:
    row = f"{user} 0 0 {idle} {iowait} 0 0 {steal} 0 0"
    measure.STAT.write_text(f"cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 {row}\ncpu1 99999 0 0 0 0 0 0 0 0 0\nintr 12 3\n")


def test_table_aligns_numbers_to_the_right() -> None:
    rows = [("one", 1.0, 100), ("another one", 20.25, "")]
    assert table(("case", "wall s", "MB"), rows).splitlines() == [
        "case         wall s   MB",
        "one            1.00  100",
        "another one   20.25",
    ]


def test_figure_is_judged_by_ratio_and_by_value() -> None:
    assert [Figure(what="", ours=1.0, stock=stock, times=20).met for stock in (20.0, 19.9)] == [True, False]
    assert [Figure(what="", ours=ours, most=2.0).met for ours in (2.0, 2.1)] == [True, False]
    assert [Figure(what="", ours=ours, least=2.0).met for ours in (2.0, 1.9)] == [True, False]
    assert not Figure(what="", ours=2.1, stock=100.0, times=20, most=2.0).met
    assert Figure(what="", ours=0.0, stock=1.0).ratio == float("inf")


def test_compared_judges_wall_time_and_cpu_time() -> None:
    ours, stock = Cost(wall=1.0, cpu=4.0, peak_mib=1), Cost(wall=9.0, cpu=8.0, peak_mib=1)
    assert [figure.met for figure in compared("", ours, stock, times=5, cpu_times=2)] == [True, True]
    assert [figure.met for figure in compared("", ours, stock, times=10, cpu_times=3)] == [False, False]
    assert [figure.met for figure in compared("", ours, wall=0.9, cpu=3.9)] == [False, False]
    assert [figure.limit for figure in compared("", stock, limit=ours)] == [1.0, 4.0]


def test_report_prints_one_table_and_writes_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--json", str(tmp_path / "figures.json")]
    assert report(option_parser("").parse_args(words), FIGURES, "DETAILS", "ABOUT", rows=[1]) == 0
    head, _, details, _, *lines = capsys.readouterr().out.splitlines()
    assert head.endswith(", ABOUT, other processes used 0 % of the CPUs")
    assert details == "DETAILS"
    assert [line.split() for line in lines] == [
        ["ours", "stock", "ratio", "goal", "limit", "verdict"],
        ["faster", "1", "s", "19", "s", "19x", ">=", "20x", "0.5", "s", "MISSED"],
        ["memory", "99", "MB", "<=", "100", "MB", "met"],
        ["for", "information", "1"],
    ]
    body = json.loads((tmp_path / "figures.json").read_text())
    assert body["rows"] == [1]
    assert [goal["met"] for goal in body["goals"]] == [False, True, True]


def test_report_prints_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(option_parser("").parse_args(["--markdown"]), FIGURES[:1], "DETAILS") == 0
    _, _, *lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "|  | ours | stock | ratio | goal | limit | verdict |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| faster | 1 s | 19 s | 19x | >= 20x | 0.5 s | MISSED |",
    ]


@pytest.mark.parametrize(("figures", "status"), [(FIGURES, 1), (FIGURES[1:], 0)])
def test_check_fails_only_for_missed_goals(figures: list[Figure], status: int) -> None:
    assert report(option_parser("").parse_args(["--check"]), figures, "") == status


def test_load_is_the_share_of_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    load = Load()
    _write_stat(user=60, steal=20, idle=1100, iowait=20)  # of 200 ticks, 80 were busy
    assert load.others == pytest.approx(40)
    own = 50 / os.sysconf("SC_CLK_TCK")
    monkeypatch.setattr(os, "times", lambda: (own / 4, own / 4, own / 4, own / 4, 0.0))
    assert load.others == pytest.approx(15)


def test_busy_machine_has_no_verdict_on_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = option_parser("").parse_args(["--check", f"--json={tmp_path / 'figures.json'}"])
    _write_stat(user=11, idle=1089)
    assert report(options, FIGURES, "") == 3
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-2:] for line in lines[3:5]] == [["no", "verdict"], ["MB", "met"]]
    assert lines[-1] == "No verdict on times: other processes used 11 % of the CPUs (at most 10 %)."
    assert [goal["met"] for goal in json.loads((tmp_path / "figures.json").read_text())["goals"]] == [None, True, True]
    # A goal that load does not change is still judged.
    assert report(options, SLOW, "") == 1
    _write_stat(user=10, idle=1090)
    assert report(options, FIGURES, "") == 1
