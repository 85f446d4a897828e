"""Reports with and without a terminal."""

from __future__ import annotations

import pytest

from core.model import Finding, Severity
from core.report import Reporter, print_table
from core.units import human


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (154_379_457, "154.4 MB"), (5_189_488_920, "5.19 GB")],
)
def test_human_sizes(size: int, text: str) -> None:
    assert human(size) == text


def test_plain_output_has_group_steps_and_time(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter(terminal=False)
    with reporter.group("build"):
        reporter.step("first")
        reporter.advance(1, 2)
        reporter.step("second")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[:3] == ["build", "  first", "  second"]
    assert err.splitlines()[3].endswith(" s")


def test_ci_output_closes_groups_after_error(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter(terminal=False, groups=True)
    with pytest.raises(ValueError, match="broken"), reporter.group("build"):
        raise ValueError("broken")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "::group::build"
    assert lines[-1] == "::endgroup::"


@pytest.mark.parametrize(
    ("kind", "said"),
    [("bytes", "  fetch: 1.2 kB of 5.7 kB"), ("actions", "  fetch: 1,234 of 5,678 actions; Compiling a.cc")],
)
def test_long_step_prints_progress(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, kind: str, said: str
) -> None:
    now = iter([0.0, 5.0, 11.0, 11.0, 12.0])
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    reporter = Reporter(terminal=False)
    reporter.step("fetch")
    for done in (1, 1234, 2345):
        if kind == "bytes":
            reporter.advance(done, 5678)
        else:
            reporter.count(done, 5678, "Compiling a.cc")
    assert capsys.readouterr().err.splitlines() == ["  fetch", said]


def test_details_need_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    Reporter(terminal=False).detail("pip install")
    Reporter(terminal=False, verbose=True).detail("pip download")
    assert capsys.readouterr().err == "    pip download\n"


def test_finding_is_one_line_with_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    finding = Finding(code="x-y", severity=Severity.WARNING, message="It is so.", remedy="Do this.", member="a.so")
    Reporter(terminal=False).finding(finding, "w.whl")
    assert capsys.readouterr().err == "warning: x-y: w.whl a.so: It is so. Do this.\n"


def test_terminal_keeps_line_per_finished_step(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter(terminal=True)
    with reporter.group("build"):
        reporter.step("first")
        reporter.advance(1_000_000, 2_000_000)
        reporter.step("second")
    err = capsys.readouterr().err
    assert "  first (0.0 s)" in err
    assert "  second (0.0 s)" in err


def test_result_table_goes_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "size"), [("a" * 90, "1")], numeric=(1,))
    out, err = capsys.readouterr()
    assert "a" * 90 in out
    assert err == ""
    Reporter(terminal=False).table(("name",), [("b",)])
    assert "b" in capsys.readouterr().err


def test_table_grows_on_terminal_only(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich renders as on a terminal
    rows = [("lax", "1/2")]
    for terminal in (True, False):
        reporter = Reporter(terminal=terminal)
        with reporter.group("compile"), reporter.live_table(lambda: (("programs", "gfx942"), rows)):
            reporter.step("gfx942 done")
        err = capsys.readouterr().err
        assert ("1/2" in err) is terminal
        assert "gfx942 done" in err
