"""Lint, types, import contracts and tests, by tier; every step runs even if one fails.

The tier `newcomer` needs Python alone. `change` adds end-to-end tests, which run the
newcomer tier on a bare machine, and one shard of `nightly`. Named files and tests run
whatever their tier, without the other checks.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from tests.support import tiers
from tests.support.tiers import CHANGE, NEWCOMER, NIGHTLY, Shard, TierTable

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
USAGE = (
    "python3 build/test [--tier TIER [--shard K/N]] [--list] [--jobs N] [--record]"
    " [PATH[::TEST] | pytest options]"
)
SETTINGS = [f"--rootdir={ROOT}", f"--config-file={ROOT / 'pyproject.toml'}"]


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """Result of one step."""

    name: str
    ok: bool
    seconds: float
    output: str = ""


class Checks:
    """Checkers that run in the background, two at a time, from creation on.

    Args:
        names: checkers to run.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.steps: list[StepResult] = []
        """Results that were printed."""
        self._running: dict[str, Future[StepResult]] = {}
        pool = ThreadPoolExecutor(max_workers=2)
        environment = dict(
            os.environ
        )  # pytest, in this process, changes the variables while exec reads them
        for name in sorted(names, key=lambda name: name != TYPES):
            self._running[name] = pool.submit(run_check, name, environment)
        pool.shutdown(wait=False)

    def show(self) -> None:
        """Print the results, those of failed checkers with their output.

        Wait for those that still run.
        """
        while self._running:
            name = next(iter(self._running))
            step = self._running.pop(name).result()
            print(
                f"{step.name}: {'passed' if step.ok else 'FAILED'} in"
                f" {step.seconds:.1f} s"
            )
            if not step.ok:
                print(step.output)
            self.steps.append(step)
        sys.stdout.flush()  # pytest writes to a copy of it


class Summary:
    """A pytest plugin that measures the files and prints a table of all steps."""

    def __init__(self, checks: Checks) -> None:
        self.checks = checks
        self.seconds: dict[str, float] = defaultdict(float)
        """Seconds of each test file, fixtures included."""
        self.failed: set[str] = set()
        self.shown = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the time of a test to its file."""
        file = report.nodeid.split("::")[0]
        self.seconds[file] += report.duration
        if report.failed:
            self.failed.add(file)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Fail a module that cannot be imported."""
        if report.failed:
            self.failed.add(report.nodeid.split("::")[0])

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self) -> Iterator[None]:
        """Print the table after pytest's summary, before its closing line."""
        yield
        self.show()

    def show(self) -> None:
        """Print the table once, even if pytest stopped before its summary."""
        if self.shown:
            return
        self.shown = True
        self.checks.show()
        folders: dict[str, float] = defaultdict(float)
        for file, seconds in self.seconds.items():
            folders[_folder(file)] += seconds
        failed = {_folder(file) for file in self.failed}
        steps = [*self.checks.steps]
        for name in sorted({*folders, *failed}, reverse=True):
            steps.append(
                StepResult(name=name, ok=name not in failed, seconds=folders[name])
            )
        table = Table("step", "result", "time")
        table.columns[2].justify = "right"
        for step in steps:
            table.add_row(
                step.name,
                "passed" if step.ok else "[bold red]FAILED",
                f"{step.seconds:.1f} s",
            )
        Console().print(table)
        print("Times of tests are sums over all workers.", flush=True)


class Counting:
    """A pytest plugin that counts the tests of each file instead of running them."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Count the tests, then drop them."""
        self.counts.update(tiers.file_of(item) for item in items)
        items.clear()


def _folder(file: str) -> str:
    return "/".join(file.split("/")[:2])


def run_check(name: str, environment: Mapping[str, str]) -> StepResult:
    """Run one checker of `.venv` in the repository root."""
    started = time.monotonic()
    program, *arguments = CHECKS[name]
    argv = [str(Path(sys.prefix, "bin", program)), *arguments]
    done = subprocess.run(
        argv,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return StepResult(
        name=name,
        ok=done.returncode == 0,
        seconds=time.monotonic() - started,
        output=done.stdout,
    )


def check_tiers() -> StepResult:
    """Check that each test file has one tier, and that no shard is above its limit."""
    started = time.monotonic()
    found = tiers.problems(TierTable.load(), tiers.test_files(), tiers.load_durations())
    return StepResult(
        name="tiers",
        ok=not found,
        seconds=time.monotonic() - started,
        output="\n".join(found),
    )


def list_tests() -> int:
    """Print each tier with its files, their tests and recorded seconds; then the shards."""
    counting = Counting()
    quiet = ["--quiet", "--quiet", "--no-header", "--no-summary"]
    status = pytest.main([*SETTINGS, *quiet], plugins=[counting])
    table = TierTable.load()
    durations = tiers.load_durations()
    files = sorted(counting.counts)
    for tier in tiers.TIERS:
        own = [file for file in files if table.tier(file) == tier]
        tests = sum(counting.counts[file] for file in own)
        seconds = sum(durations.get(file, 0.0) for file in own)
        print(f"{tier}: {len(own)} files, {tests} tests, {seconds:.0f} s")
        for file in own:
            print(
                f"  {file}: {counting.counts[file]} tests,"
                f" {durations.get(file, 0.0):.1f} s"
            )
    nightly = [file for file in files if table.tier(file) == NIGHTLY]
    for number, shard in enumerate(
        tiers.distribute(nightly, durations, table.shards, table.together), 1
    ):
        seconds = sum(durations.get(file, 0.0) for file in shard)
        print(f"shard {number}/{table.shards}: {len(shard)} files, {seconds:.0f} s")
    return 0 if status == pytest.ExitCode.NO_TESTS_COLLECTED else int(status)


def compile_modules() -> None:
    """Collect all tests once; in a fresh clone, each worker would compile all modules."""
    argv = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", *SETTINGS]
    subprocess.run(
        argv, cwd=ROOT, capture_output=True, check=False
    )  # the workers report errors


def names_tests(words: Sequence[str]) -> bool:
    """Return whether words of the command line name test files, folders or tests.

    A word without a slash may be the value of `-k`, and a folder elsewhere that of
    `--basetemp`.
    """
    for word in words:
        if "::" in word or word.endswith(".py"):
            return True
        if "/" in word and Path(word).resolve().is_relative_to(ROOT):
            return True
    return False


def main(argv: Sequence[str]) -> int:
    """Run the tier or the named tests.

    Return 0 if all passed and, with CI=true, no test was skipped.
    """
    parser = argparse.ArgumentParser(
        prog="test", usage=USAGE, description=__doc__, allow_abbrev=False
    )
    parser.add_argument(
        "--tier", choices=tiers.TIERS, help="tests to run (default: newcomer)"
    )
    parser.add_argument(
        "--shard", type=Shard.parse, metavar="K/N", help="part of the nightly tier"
    )
    parser.add_argument(
        "--list",
        action="store_true",
        help="print tiers, files and shards without running tests",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="number of tests at a time; 0 uses this process",
    )
    parser.add_argument(
        "--record",
        action="store_true",
        help="write the measured seconds to tests/durations.json",
    )
    parser.epilog = "--offline leaves out the tests that need the network."
    options, rest = parser.parse_known_args(argv)

    if options.list:
        return list_tests()
    named = names_tests(rest)
    tier = options.tier or ("" if named else NEWCOMER)
    shard = options.shard
    if tier == CHANGE and shard is None:
        shard = tiers.shard_of_tree(TierTable.load().shards)
        print(f"tier change with shard {shard} of the nightly tier", flush=True)

    # Hundreds of processes import the same modules, so bytecode is cached.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    checks = Checks([*CHECKS] if tier == NEWCOMER else [])
    if tier == NEWCOMER:
        checks.steps.append(check_tiers())
        print(checks.steps[0].output)
    jobs = options.jobs
    if jobs is None:
        single = named or not SINGLE_PROCESS.isdisjoint(rest)
        jobs = 0 if single else len(os.sched_getaffinity(0))
    if jobs > 1 and not (ROOT / "tests" / "unit" / "__pycache__").exists():
        compile_modules()

    # The tests of a file share fixtures, so they stay in one worker.
    settings = [f"--numprocesses={jobs}", "--dist=loadfile", "--no-loadscope-reorder"]
    settings += ["--durations=20", "--durations-min=5"]  # seconds
    summary = Summary(checks)
    settings += [f"--tier={tier}", f"--shard={shard or ''}"]
    status = pytest.main([*SETTINGS, *settings, *rest], plugins=[summary])
    summary.show()
    if options.record:
        tiers.record_durations(summary.seconds, tiers.test_files())
    if status and shard is not None and tier == CHANGE:
        print(f"If tests of shard {shard} failed, repeat it on the parent commit:")
        print("  git worktree add ../parent HEAD^ && cd ../parent")
        print(f"  python3 build/test --tier nightly --shard {shard}")
    return int(status != 0 or not all(step.ok for step in checks.steps))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
