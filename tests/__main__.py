"""The whole check of `build/test`: lint, types, import contracts and all tests; every step runs even if one fails.

mypy, which takes longer than the other checkers together, runs beside the tests.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
TYPES = "mypy --strict"
CHECKS = {
    "ruff check": ("ruff", "check", "--no-cache", "."),
    "ruff format": ("ruff", "format", "--no-cache", "--check", "."),
    "import contracts": ("lint-imports", "--no-logo", "--no-cache"),
    TYPES: ("mypy",),
}
SINGLE_PROCESS = {"-s", "--capture=no", "--pdb", "--trace", "--collect-only", "--co"}
"""pytest options that need the tests in one process."""
USAGE = "python3 build/test [--fast | --unit | --list] [--offline] [--heavy] [--jobs N] [PATH[::TEST] | pytest options]"


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """Result of one step."""

    name: str
    ok: bool
    seconds: float
    output: str = ""


class Checks:
    """Checkers that run in the background, two at a time, as soon as this object exists.

    Args:
        names: checkers to run.
    """

    def __init__(self, names: Sequence[str]) -> None:
        pool = ThreadPoolExecutor(max_workers=2)
        longest_first = sorted(names, key=lambda name: name != TYPES)
        environment = dict(os.environ)  # exec fails with EFAULT while pytest, in this process, changes the variables
        self._running: dict[str, Future[StepResult]] = {
            name: pool.submit(run_check, name, environment) for name in longest_first
        }
        pool.shutdown(wait=False)
        self.steps: list[StepResult] = []
        """Results that were printed."""

    def show(self, *names: str, write: Callable[[str], None] = print) -> None:
        """Print the results of these checkers, of failed ones with their output; wait for those that still run."""
        for name in names:
            if result := self._running.pop(name, None):
                step = result.result()
                write(f"{step.name}: {'passed' if step.ok else 'FAILED'} in {step.seconds:.1f} s")
                if not step.ok:
                    write(step.output)
                self.steps.append(step)
        sys.stdout.flush()  # pytest writes to a copy of it

    def failed(self) -> list[str]:
        """Return the checkers that failed and were not printed yet."""
        return [name for name, result in self._running.items() if result.done() and not result.result().ok]


class Summary:
    """A pytest plugin that prints a table of all steps above pytest's closing line."""

    def __init__(self, checks: Checks, left_out: Sequence[str], jobs: int) -> None:
        self.checks, self.left_out, self.jobs = checks, left_out, jobs
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: set[str] = set()
        self.shown = False
        self.terminal: pytest.TerminalReporter | None = None

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Keep pytest's way to the terminal."""
        self.terminal = session.config.pluginmanager.get_plugin("terminalreporter")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the time of a test to its folder, and print a checker that failed meanwhile."""
        if self.terminal and (failed := self.checks.failed()):
            self.terminal.write_line("")  # after the dots
            self.checks.show(*failed, write=self.terminal.write_line)
        folder = self._folder(report.nodeid)
        self.seconds[folder] += report.duration
        if report.failed:
            self.failed.add(folder)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Fail the folder of a module that cannot be imported."""
        if report.failed:
            self.failed.add(self._folder(report.nodeid))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self) -> Iterator[None]:
        """Print the table and the omissions after pytest's summary, before its closing line."""
        yield
        self.show()

    def show(self) -> None:
        """Print the table once, even if pytest stopped before its summary."""
        if self.shown:
            return
        self.shown = True
        self.checks.show(*CHECKS)
        table = Table("step", "result", "time")
        table.columns[2].justify = "right"
        names = sorted({*self.seconds, *self.failed}, reverse=True)
        tests = [StepResult(name=name, ok=name not in self.failed, seconds=self.seconds[name]) for name in names]
        for step in [*self.checks.steps, *tests]:
            table.add_row(step.name, "passed" if step.ok else "[bold red]FAILED", f"{step.seconds:.1f} s")
        Console().print(table)
        if self.jobs > 1:
            print(f"{self.jobs} tests ran at a time; the times of tests are sums", flush=True)
        for omission in self.left_out:
            print(f"left out: {omission}", flush=True)

    @staticmethod
    def _folder(nodeid: str) -> str:
        return "/".join(nodeid.split("::")[0].split("/")[:2])


class Listing:
    """A pytest plugin that prints the number of tests in each file instead of running them."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Print the files, then drop the tests."""
        tests, heavy = Counter[str](), Counter[str]()
        for item in items:
            file = item.nodeid.split("::")[0]
            tests[file] += 1
            heavy[file] += item.get_closest_marker("heavy") is not None
        for file, count in sorted(tests.items()):
            print(f"{file}: {count} tests" + (f", {heavy[file]} heavy" if heavy[file] else ""))
        items.clear()


def run_check(name: str, environment: Mapping[str, str]) -> StepResult:
    """Run one checker of `.venv` in the repository root."""
    started = time.monotonic()
    program, *arguments = CHECKS[name]
    argv = [str(Path(sys.prefix, "bin", program)), *arguments]
    done = subprocess.run(
        argv, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return StepResult(name=name, ok=done.returncode == 0, seconds=time.monotonic() - started, output=done.stdout)


def compile_modules(arguments: Sequence[str]) -> None:
    """Collect the tests of these arguments; in a fresh clone, each worker would compile all modules."""
    argv = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", *arguments]
    subprocess.run(argv, cwd=ROOT, capture_output=True, check=False)  # the workers report errors


def list_everything(settings: Sequence[str]) -> int:
    """Print the checks, the test files, and how to run one test."""
    for name, argv in CHECKS.items():
        print(f"{name}: .venv/bin/{' '.join(argv)}")
    quiet = ["--quiet", "--quiet", "--no-header", "--no-summary"]
    status = pytest.main([*settings, *quiet, str(ROOT / "tests")], plugins=[Listing()])
    print("Run one test: python3 build/test FILE::TEST. Add --heavy for tests that otherwise only CI=true runs.")
    return 0 if status == pytest.ExitCode.NO_TESTS_COLLECTED else int(status)


def main(argv: Sequence[str]) -> int:
    """Run everything; return 0 if all passed and, with CI=true, no test was omitted."""
    parser = argparse.ArgumentParser(prog="test", usage=USAGE, description=__doc__, allow_abbrev=False)
    scope = parser.add_mutually_exclusive_group()
    scope.add_argument("--fast", action="store_true", help="leave out the integration tests")
    scope.add_argument("--unit", action="store_true", help="run only the unit tests, without lint, types and contracts")
    scope.add_argument("--list", action="store_true", help="print the checks and test files without running them")
    parser.add_argument("--jobs", type=int, metavar="N", help="number of tests at a time; 0 uses this process")
    parser.epilog = "--offline leaves out tests that need the network; --heavy adds those that only CI=true runs."
    options, rest = parser.parse_known_args(argv)

    settings = [f"--rootdir={ROOT}", f"--config-file={ROOT / 'pyproject.toml'}"]
    if options.list:
        return list_everything(settings)
    left_out = []
    if options.fast or options.unit:
        left_out.append(f"tests/integration: because of {'--fast' if options.fast else '--unit'}")
    if options.unit:
        left_out.append(f"{', '.join(CHECKS)}: because of --unit")
    # Hundreds of processes import the same modules, so bytecode is cached.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    checks = Checks(() if options.unit else tuple(CHECKS))

    # A name such as docs may be the value of -k, and other folders that of --basetemp.
    folders = (word for word in rest if "/" in word and Path(word).resolve().is_relative_to(ROOT / "tests"))
    named = any(folders) or any("::" in word or word.endswith(".py") for word in rest)
    chosen = [] if named else [ROOT / "tests"]
    strict = os.environ.get("CI", "").lower() in ("1", "true")
    # Tests wait a fifth of their time, for disks and for each other's processes; heavy tests keep all cores busy.
    jobs = len(os.sched_getaffinity(0)) + (not strict) if options.jobs is None else options.jobs
    if options.jobs is None and (not chosen or not SINGLE_PROCESS.isdisjoint(rest)):
        jobs = 0  # output and debuggers work in this process only
    if chosen and left_out:
        chosen = [ROOT / "tests" / "unit"]
    if chosen and jobs > 1 and not (ROOT / "tests" / "unit" / "__pycache__").exists():
        compile_modules([*settings, *map(str, chosen)])
    checks.show(*(name for name in CHECKS if name != TYPES))
    # The tests of a file share fixtures, so they stay in one worker.
    settings += [f"--numprocesses={jobs}", "--dist=loadfile", "--no-loadscope-reorder"]
    settings += ["--durations=40", "--durations-min=10"]  # seconds
    summary = Summary(checks, left_out, jobs)
    status = pytest.main([*settings, *map(str, chosen), *rest], plugins=[summary])
    summary.show()
    return int(status != 0 or not all(step.ok for step in checks.steps) or (strict and bool(left_out)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
