"""`ci_build doctor`: examine a machine and a Python, and print one screen.

See the package's docstring.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ci_build.doctor import choice, examined, machine, packages
from ci_build.doctor import doctor_screen as screen
from ci_build.doctor import installed_rocms as rocm
from ci_build.doctor.diagnosis import Facts, Problem, of_machine
from ci_build.doctor.diagnosis_packages import of_packages, of_python, of_rocm
from ci_build.doctor.examined import ExaminedSystem
from core.errors import CiBuildError, InputError, SickMachineError
from core.model import Severity, to_json
from core.terminal import width_of


def examine(here: ExaminedSystem, index: str = "") -> Facts:
    """Collect all facts.

    Args:
        index: URL or folder of an index whose sets are considered; empty for published
            wheels.
    """
    looked = machine.look(here)
    installed, shadowed, leftovers = packages.look(here)
    core = installed.get("rocm-sdk-core")
    trees = rocm.look(here, core.version if core else "")
    offers: tuple[choice.OfferedSet, ...] = ()
    index_error = ""
    try:
        offers = choice.read_sets(index) if index else ()
    except InputError as error:
        index_error = str(error)
    major = choice.wanted_major(
        installed.values(), (major for tree in trees.found for major in tree.majors)
    )
    fitting = choice.fitting(offers, here.python.minor, looked.names, major)
    return Facts(
        environ=here.environ,
        python=here.python,
        machine=looked,
        trees=trees,
        packages=packages.InstalledPackages(
            installed=installed,
            shadowed=shadowed,
            leftovers=leftovers,
            lacking=packages.lacking(installed, trees.layouts),
        ),
        offers=offers,
        fitting=fitting,
        choice=choice.choose(fitting, installed, looked.names, major),
        asked_index=index,
        index_error=index_error,
    )


def diagnose(facts: Facts) -> tuple[Problem, ...]:
    """Return all problems, in the order in which to fix them."""
    problems = [
        *of_machine(facts),
        *of_python(facts),
        *of_rocm(facts),
        *of_packages(facts),
    ]
    return tuple(
        sorted(problems, key=lambda problem: problem.severity is not Severity.ERROR)
    )


def as_json(facts: Facts, problems: Sequence[Problem]) -> Mapping[str, object]:
    """Return facts and problems as JSON values."""
    return {
        "python": to_json(facts.python),
        "machine": to_json(facts.machine),
        "rocm": to_json(facts.trees.found),
        "packages": to_json(facts.packages),
        "fits": to_json(facts.choice),
        "sets_that_fit": [offer.digest for offer in facts.fitting],
        "problems": to_json(problems),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ci_build doctor",
        description=(
            "Report GPU, driver, ROCm, Python and jax packages, and problems with"
            " commands that fix them."
        ),
        epilog=(
            f"Exit code: {SickMachineError.exit_code} if an error was found,"
            " otherwise 0."
        ),
        allow_abbrev=False,
    )
    parser.add_argument(
        "--python",
        metavar="PATH",
        help="examine this Python instead of the one that runs ci_build",
    )
    parser.add_argument(
        "--index",
        metavar="URL",
        default="",
        help="index, or folder of a bucket, whose sets are considered",
    )
    parser.add_argument(
        "--json", action="store_true", help="print facts and problems as JSON"
    )
    return parser


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    options = _parser().parse_args(arguments)
    environ = dict(os.environ)
    try:
        python = (
            examined.other_python(options.python, environ)
            if options.python
            else examined.own_python()
        )
    except CiBuildError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    system = os.uname()
    libc = ""
    with suppress(OSError, ValueError):
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    here = ExaminedSystem(
        environ=environ,
        root=Path("/"),
        system=(system.sysname, system.machine, system.release),
        libc=libc,
        python=python,
    )
    facts = examine(here, options.index)
    problems = diagnose(facts)
    width = width_of(sys.stdout)
    text = (
        json.dumps(as_json(facts, problems), indent=2)
        if options.json
        else screen.show(facts, problems, width)
    )
    print(text)  # noqa: T201
    wrong = any(problem.severity is Severity.ERROR for problem in problems)
    return SickMachineError.exit_code if wrong else 0


if __name__ == "__main__":
    # A reader such as `head` may close the pipe early.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(run(sys.argv[1:]))
