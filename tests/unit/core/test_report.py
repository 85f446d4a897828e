"""Reports with and without a terminal."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from core.model import Finding, Severity
from core.report import Reporter


def test_plain_output_has_group_steps_and_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reporter = Reporter(terminal=False)
    with reporter.group("build"):
        reporter.step("first")
        reporter.advance(1, 2)
        reporter.step("second")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[:3] == ["build", "  first", "  second"]
    assert err.splitlines()[3].endswith(" s")


def test_output_of_programs_cannot_end_a_group(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reporter = Reporter(terminal=False, github=True, verbose=True)
    with reporter.group("build"):
        reporter.detail("a\n::endgroup::\n  ::add-mask::x\n##[endgroup]")
    err = capsys.readouterr().err
    markers = ["::group::build", "::endgroup::"]
    assert re.findall(r"^\s*::\S+", err, re.MULTILINE) == markers
    assert "##[" not in err


def test_parallel_tasks_label_their_lines(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter(terminal=False, github=True)
    barrier = threading.Barrier(8)

    def work(name: str) -> None:
        with reporter.task(f"gate {name}") as task:
            barrier.wait()
            for number in range(50):
                task.step(f"step {number} of {name}")
            with task.task("hidden", transient=True) as inner:
                inner.step("not printed")
                inner.count(1, 2)
            with task.task("part") as part:
                part.step("seen")

    with reporter.group("gates"), ThreadPoolExecutor(8) as pool:
        list(pool.map(work, "abcdefgh"))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "::group::gates"
    assert lines[-1] == "::endgroup::"
    for name in "abcdefgh":
        own = [line for line in lines if line.startswith(f"  gate {name}")]
        steps = [f"  gate {name}: step {number} of {name}" for number in range(50)]
        assert own[:-2] == [
            f"  gate {name}",
            *steps,
            f"  gate {name}: part",
            f"  gate {name}: part: seen",
        ]
        assert own[-1].startswith(f"  gate {name}: finished in ")
    assert len(lines) == 8 * 55 + 3


def test_warnings_are_printed_at_the_end_each_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reporter = Reporter(terminal=False, quiet=True)
    reporter.collect_warnings()
    with reporter.group("build"):
        for name in ("a.so", "b.so", "c.so", "d.so", "d.so"):
            found = Finding(
                code="x-y",
                severity=Severity.WARNING,
                message="It is so.",
                remedy="Do this.",
                member=name,
            )
            reporter.finding(found, "w.whl")
        for _ in range(2):
            reporter.warning("the disk is slow")
            reporter.notice("trying again")
        assert capsys.readouterr().err == "warning: trying again\n"
        reporter.finding(
            Finding(code="bad", severity=Severity.ERROR, message="No.", remedy=""),
            "w.whl",
        )
    assert capsys.readouterr().err == "error: bad: w.whl: No.\n"
    reporter.close()
    reporter.close()
    assert capsys.readouterr().err.splitlines() == [
        "warning: x-y: w.whl a.so, w.whl b.so, w.whl c.so and 1 more: It is so. Do this.",
        "warning: the disk is slow",
    ]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("bytes", "  fetch: 1.2 kB of 5.7 kB"),
        ("actions", "  fetch: 1,234 of 5,678 actions; Compiling a.cc"),
    ],
)
def test_long_step_prints_progress(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    said: str,
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    reporter = Reporter(terminal=False)
    reporter.step("fetch")
    for done, now in ((1, 5.0), (1234, 11.0), (2345, 12.0)):  # noqa: B007 - the clock reads it
        if kind == "bytes":
            reporter.advance(done, 5678)
        else:
            reporter.count(done, 5678, "Compiling a.cc")
    assert capsys.readouterr().err.splitlines() == ["  fetch", said]
