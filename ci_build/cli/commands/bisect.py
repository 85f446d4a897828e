"""The command `ci_build bisect`."""

from __future__ import annotations

import hashlib
from pathlib import Path

import click
import cloup

from ci_build.cli.common import State, host_runner, open_bucket, print_json
from ci_build.cli.options.environment import child_environment
from ci_build.cli.options.release import bucket_option
from core.report import print_line, print_table
from promotion.storage.keys import ReleasedIndex


@cloup.command()
@click.argument("index")
@click.argument("command", nargs=-1, required=True, metavar="-- COMMAND...", type=click.UNPROCESSED)
@click.option("--good", required=True, metavar="N|DIGEST", help="A set with which the command succeeds.")
@click.option("--bad", required=True, metavar="N|DIGEST", help="A newer set with which the command fails.")
@click.option("--python", default="", metavar="X.Y", help="Python version.  [default: the newest of both sets]")
@click.option(
    "--work",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for results; an interrupted bisection in it resumes.  [default: one in the cache]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@bucket_option
@click.pass_obj
def bisect(
    state: State, /, index: str, command: tuple[str, ...], good: str, bad: str, python: str, work: Path | None,
    bucket: str, *, as_json: bool,
) -> None:  # fmt: skip
    """Find the first set of INDEX with which COMMAND fails.

    Each tried set is installed into a clean environment, whose programs come first in PATH. COMMAND ends with 0 for a
    good set, with 125 to skip a set, and with 1 to 127 for a bad one. In COMMAND, {set} stands for the folder of the
    set and {python} for the interpreter of its environment.
    """
    from promotion import bisect as bisection  # Start-up time: the gates load auditwheel.

    reporter = state.reporter()
    runner, opened = host_runner(reporter), open_bucket(bucket, reporter)
    released = ReleasedIndex(index=index)
    with reporter.group(f"bisect {index}"):
        found = bisection.candidates(opened, released, good, bad)
        if work is None:
            words = (index, found[0].digest, found[-1].digest, python, *command)
            key = hashlib.sha256("\0".join(words).encode()).hexdigest()
            work = state.settings({}).cache_dir / "bisect" / key
        path = child_environment().get("PATH", "")
        request = bisection.BisectionRequest(found=found, command=command, python=python, path=path, work=work)
        result = bisection.run(opened, released, request, runner, reporter)
    if as_json:
        print_json(result)
        return
    for one in result.skipped:
        print_line(f"skipped, so it may be the first bad set: {index}/{one.number}, {one.digest}")
    print_line(f"last good set: {index}/{result.good.number}, {result.good.digest}")
    print_line(f"first bad set: {index}/{result.bad.number}, {result.bad.digest}")
    rows = [(field, str(old), str(new)) for field, (old, new) in result.changed.items()]
    print_table(("changed", "good", "bad"), rows)
