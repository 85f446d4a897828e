"""The live display on a real pseudo-terminal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable
from itertools import product

import pytest

from core.terminal import fold
from tests.support.terminal import show

RELEASE = """
import sys, threading
from rich.live import Live
from core.report import Reporter

frame, refresh = threading.Condition(), Live.refresh


def draw(live):
    refresh(live)
    with frame:
        frame.notify_all()


def wait_for_frame():
    with frame:
        assert frame.wait(60)


Live.refresh = draw
reporter = Reporter(terminal=True)
reporter.collect_warnings()
reporter.plan(("dist_wheels", "stage", "gates", "promote"))
with reporter.group("dist_wheels: 0.10.2+rocm7.2.0 for gfx942, gfx950"):
    reporter.step("find wheels")
    reporter.step("fetch jax_rocm7_pjrt-0.10.2+rocm7.2.0.gfx942-py3-none-manylinux_2_28_x86_64.whl")
    for done in range(4):
        reporter.advance(done * 10**6, 4 * 10**6)
        wait_for_frame()
    reporter.warning("The cache is on a slow disk.")
    reporter.line("  a line of " + "many-words-" * 20)
    print("from a library", file=sys.stderr)
    print("a result")
start = threading.Barrier(3)


def gate(name):
    with reporter.task(f"gate {name}") as task:
        start.wait()
        task.step("prepare")
        with task.task(f"gfx942 {name}", transient=True) as child:
            for done in range(6):
                child.count(done, 6, "lax.conv", unit="programs")
                print(f"log of {name} {done}", file=sys.stderr)
                wait_for_frame()


with reporter.group("gates"):
    reporter.step("reuse evidence")
    reporter.plan(["gate abi", "gate load", "gate compile", "gate install"])
    threads = [threading.Thread(target=gate, args=(name,)) for name in ("abi", "load", "compile")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
reporter.line("the receipt")
reporter.close()
"""


def rows(lines: Iterable[str], columns: int) -> list[str]:
    """Return the rows in which a terminal shows lines; times and versions are alike."""
    folded: list[str] = []
    for line in lines:
        folded.extend(row for row in fold(line, columns).split("\n") if row)
    parts = []
    for row in folded:
        for start in range(0, len(row), columns):
            parts.append(row[start : start + columns].rstrip())
    return [re.sub(r"\d\.\d", "0.0", part) for part in parts]


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_release_shows_tasks_and_leaves_only_its_lines(columns: int) -> None:
    shown = show([sys.executable, "-c", RELEASE], columns=columns)
    assert shown.code == 0
    assert shown.seen("step 1 of 4", "fetch jax", "to come: stage, gates, promote")
    assert shown.seen("MB of 4.0 MB")
    assert shown.seen(
        "step 3 of 4",
        "gate abi",
        "gfx942 abi",
        "gate load",
        "gfx942 load",
        "gate compile",
    )
    assert shown.seen("of 6 programs")
    assert shown.seen("to come: gate install, promote")
    assert shown.seen("1 warning")
    assert shown.cursor
    taken = rows(shown.lines, columns)
    logs = [line for line in taken if line.startswith("log of")]
    assert taken.index("  reuse evidence (0.0 s)") < taken.index(logs[0])
    assert sorted(logs) == sorted(
        f"log of {name} {n}"
        for name, n in product(("abi", "load", "compile"), range(6))
    )
    rest = [
        line
        for line in taken
        if not line.startswith("log of") and not line.startswith("  gate ")
    ]
    assert rest == rows(
        [
            "dist_wheels: 0.10.2+rocm7.2.0 for gfx942, gfx950",
            "  find wheels (0.0 s)",
            "  a line of " + "many-words-" * 20,
            "from a library",
            "a result",
            (
                "  fetch"
                " jax_rocm7_pjrt-0.10.2+rocm7.2.0.gfx942-py3-none-manylinux_2_28_x86_64.whl"
                " (0.0 s)"
            ),
            "  0.0 s",
            "gates",
            "  reuse evidence (0.0 s)",
            "  0.0 s",
            "the receipt",
            "warning: The cache is on a slow disk.",
        ],
        columns,
    )
    ends = [line for line in taken if line.startswith("  gate ")]
    gates = ("abi", "compile", "load")
    assert sorted(ends) == sorted(
        f"  gate {name}: {what} s{end}"
        for name, (what, end) in product(
            gates, (("finished in 0.0", ""), ("prepare (0.0", ")"))
        )
    )


INTERRUPTED = """
import time
import click
from ci_build import cli
from ci_build.cli.common import State


@click.command("wait")
@click.pass_obj
def wait(state):
    reporter = state.reporter()
    with reporter.group("build"), reporter.task("compile"):
        reporter.warning("It is slow.")
        time.sleep(60)


cli.main.add_command(wait)
raise SystemExit(cli.run(["wait"]))
"""


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_leaves_clean_terminal(sign: signal.Signals) -> None:
    sent: list[int] = []

    def interrupt(process: subprocess.Popen[bytes], frame: list[str]) -> None:
        if not sent and any(
            "/ compile" in line or "- compile" in line for line in frame
        ):
            sent.append(process.pid)
            os.kill(process.pid, sign)

    shown = show([sys.executable, "-c", INTERRUPTED], during=interrupt)
    assert shown.code == 130
    assert shown.cursor is True
    assert bool(sent) is True
    taken = [re.sub(r"\d+\.\d s", "# s", line) for line in shown.lines if line]
    assert taken == [
        "build",
        "  # s",
        "warning: It is slow.",
        "Interrupted.",
    ]


@pytest.mark.parametrize(
    ("env", "markers"),
    [
        ({"TERM": "dumb"}, ("build", "  # s")),
        ({"CI": "true"}, ("build", "  # s")),
        ({"GITHUB_ACTIONS": "true"}, ("::group::build", "  # s", "::endgroup::")),
    ],
)
def test_no_display_without_a_capable_terminal(
    env: dict[str, str], markers: tuple[str, ...]
) -> None:
    code = (
        "from ci_build.cli.options.environment import new_reporter\nreporter ="
        " new_reporter()\nwith reporter.group('build'): reporter.step('one')\n"
    )
    shown = show([sys.executable, "-c", code], env=env)
    taken = [re.sub(r"\d+\.\d s", "# s", line) for line in shown.lines if line]
    assert taken == [markers[0], "  one", *markers[1:]]
    assert b"\x1b[?25l" not in shown.raw
