"""What `build/test` runs: lint, types, import contracts, then all tests, every step even when one fails."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
CHECKS = {
    "ruff check": ("ruff", "check", "--no-cache", "."),
    "ruff format": ("ruff", "format", "--no-cache", "--check", "."),
    "import contracts": ("lint-imports", "--no-logo", "--no-cache"),
    "mypy --strict": ("mypy",),
}
CLOSELY = {"-s", "--capture=no", "--pdb", "--trace", "--collect-only", "--co"}
"""Options of pytest that make sense in one process only."""
USAGE = "python3 build/test [--fast | --unit] [--offline] [--heavy] [--jobs N] [pytest arguments]"


@dataclass(frozen=True, kw_only=True)
class Done:
    """One step that ran to its end."""

    name: str
    ok: bool
    seconds: float
    output: str = ""


class Summary:
    """A pytest plugin: the table of all steps goes above pytest's closing line, which stays the last one."""

    def __init__(self, steps: Sequence[Done], left_out: Sequence[str], jobs: int) -> None:
        self.steps, self.left_out, self.jobs = steps, left_out, jobs
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: set[str] = set()
        self.shown = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up the time of each folder of tests."""
        folder = self._folder(report.nodeid)
        self.seconds[folder] += report.duration
        if report.failed:
            self.failed.add(folder)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module that cannot be imported fails its folder."""
        if report.failed:
            self.failed.add(self._folder(report.nodeid))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self) -> Iterator[None]:
        """Print the table, and what the options left out, after all that pytest has to say but its closing line."""
        yield
        self.show()

    def show(self) -> None:
        """Print the table once, also where pytest did not come to its summary."""
        if self.shown:
            return
        self.shown = True
        table = Table("step", "result", "time")
        table.columns[2].justify = "right"
        names = sorted({*self.seconds, *self.failed}, reverse=True)
        tests = [Done(name=name, ok=name not in self.failed, seconds=self.seconds[name]) for name in names]
        for step in [*self.steps, *tests]:
            table.add_row(step.name, "passed" if step.ok else "[bold red]FAILED", f"{step.seconds:.1f} s")
        Console().print(table)
        if self.jobs > 1:
            print(f"the tests ran {self.jobs} at a time; their times are added up", flush=True)
        for what in self.left_out:
            print(f"left out: {what}", flush=True)

    @staticmethod
    def _folder(nodeid: str) -> str:
        return "/".join(nodeid.split("::")[0].split("/")[:2])


def check(name: str) -> Done:
    """Run one checker of `.venv` in the repository root."""
    began = time.monotonic()
    program, *arguments = CHECKS[name]
    argv = [str(Path(sys.prefix, "bin", program)), *arguments]
    done = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return Done(name=name, ok=done.returncode == 0, seconds=time.monotonic() - began, output=done.stdout)


def run_checks() -> list[Done]:
    """Run all checkers, two at a time, and print each one's verdict and what a failed one said."""
    steps = []
    with ThreadPoolExecutor(max_workers=2) as pool:
        for step in pool.map(check, CHECKS):
            print(f"{step.name}: {'passed' if step.ok else 'FAILED'} in {step.seconds:.1f} s", flush=True)
            if not step.ok:
                print(step.output, flush=True)
            steps.append(step)
    return steps


def main(argv: Sequence[str]) -> int:
    """Run everything; 0 when all passed and, with CI=true, nothing was left out."""
    parser = argparse.ArgumentParser(prog="test", usage=USAGE, description=__doc__, allow_abbrev=False)
    scope = parser.add_mutually_exclusive_group()
    scope.add_argument("--fast", action="store_true", help="leave out the integration tests")
    scope.add_argument("--unit", action="store_true", help="only the unit tests, without lint, types and contracts")
    parser.add_argument("--jobs", type=int, metavar="N", help="tests at a time; 0 runs them in this very process")
    parser.epilog = "--offline leaves out what needs the network, --heavy adds what otherwise only CI=true runs."
    options, rest = parser.parse_known_args(argv)

    left_out = []
    if options.fast or options.unit:
        left_out.append(f"tests/integration: because of {'--fast' if options.fast else '--unit'}")
    if options.unit:
        left_out.append(f"{', '.join(CHECKS)}: because of --unit")
    steps = [] if options.unit else run_checks()

    chosen = [] if any("::" in word or word.endswith((".py", "/")) for word in rest) else [ROOT / "tests"]
    jobs = len(os.sched_getaffinity(0)) if options.jobs is None else options.jobs
    if options.jobs is None and (not chosen or not CLOSELY.isdisjoint(rest)):
        jobs = 0  # Somebody looks closely at a few tests: in this process, where output shows and a debugger works.
    if chosen and left_out:
        chosen = [ROOT / "tests" / "unit"]
    settings = [f"--rootdir={ROOT}", f"--config-file={ROOT / 'pyproject.toml'}"]
    # The tests of a file stay together, since they share what they made.
    settings += [f"--numprocesses={jobs}", "--dist=loadfile", "--no-loadscope-reorder"]
    settings += ["--durations=40", "--durations-min=10"]  # seconds: what to look at when the whole run gets slow
    # Hundreds of processes import the same modules.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    summary = Summary(steps, left_out, jobs)
    status = pytest.main([*settings, *map(str, chosen), *rest], plugins=[summary])
    summary.show()
    strict = os.environ.get("CI", "").lower() in ("1", "true")
    return int(status != 0 or not all(step.ok for step in steps) or (strict and bool(left_out)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
