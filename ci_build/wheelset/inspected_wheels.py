"""Inspection of wheels by path, folder or URL: a report for each wheel, and one for the set."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from core import rocm_layouts as layouts
from core import targets
from core.errors import InputError, InspectionError, WheelSetError
from core.model import Finding, Progress, RocmVersion, Severity, WheelSet
from core.pip import pip_argv, run_pip
from core.process import Runner
from core.terminal import width_of
from core.units import parse_url
from core.wheelset import read_set
from wheelkit.findings import as_published, finding, sort_findings
from wheelkit.inspect.inspection_model import WheelReport
from wheelkit.inspect.inspector import Expectations, inspect_wheel
from wheelkit.inspect.text import render, render_findings
from wheelkit.inspect.wheel_set import SetReport, inspect_set, wheels_below

_DOWNLOAD = ("--quiet", "--no-deps", "--ignore-requires-python", "--only-binary=:all:")
_INTERPRETER = re.compile(r"([a-z]+)([0-9]+)")


def inspect(
    arguments: Sequence[str],
    *,
    expected: str | None,
    rocm: RocmVersion | None,
    progress: Progress,
    runner: Runner,
) -> SetReport:
    """Return the reports of all wheels.

    Args:
        arguments: wheel files, folders, or URLs (downloaded with pip and its
            configuration).
        expected: targets that device code must support, as in `--targets`; None checks
            no targets.
        rocm: ROCm whose libraries the wheels may need; None allows the libraries of any
            ROCm.

    Raises:
        InputError: an argument names no wheel.
    """
    expectations = Expectations(
        targets=None if expected is None else targets.requested(expected),
        allowed_sonames=None if rocm is None else layouts.allowed_sonames(rocm),
    )
    sets = _sets(arguments)
    taken = set()
    for wheel_set in sets.values():
        taken |= {wheel.sha256 for wheel in wheel_set.wheels if wheel.as_published}

    def report(path: Path) -> WheelReport:
        wheel_report = inspect_wheel(path, expectations, progress=progress)
        if wheel_report.sha256 not in taken:
            return wheel_report
        findings = as_published(wheel_report.findings, wheel_report.project)
        return replace(wheel_report, findings=sort_findings(findings))

    with _collected(arguments, runner) as paths:
        set_report = inspect_set(paths, report)
    findings = [*set_report.findings, *_set_differences(sets, set_report.wheels)]
    return replace(set_report, findings=sort_findings(findings))


def _sets(arguments: Sequence[str]) -> dict[Path, WheelSet]:
    """Return the wheel set of each folder that contains a set."""
    sets = {}
    for argument in arguments:
        with suppress(WheelSetError):
            sets[Path(argument)] = read_set(Path(argument))
    return sets


def _set_differences(
    sets: Mapping[Path, WheelSet], wheels: Sequence[WheelReport]
) -> Iterator[Finding]:
    """Yield findings for wheels that are missing or differ from wheels.json."""
    there = {(wheel.filename, wheel.sha256) for wheel in wheels}
    for folder, wheel_set in sets.items():
        for wheel in wheel_set.wheels:
            if not (folder / wheel.filename).is_file():
                yield finding(
                    "set-wheel-missing",
                    f"{folder}/wheels.json lists this wheel.",
                    member=wheel.filename,
                )
            elif (wheel.filename, wheel.sha256) not in there:
                text = f"{folder}/wheels.json has sha256 {wheel.sha256}."
                yield finding("set-wheel-differs", text, member=wheel.filename)


@contextmanager
def _collected(arguments: Sequence[str], runner: Runner) -> Iterator[list[Path]]:
    with tempfile.TemporaryDirectory(prefix="inspect-") as scratch:
        local = [*arguments]
        for number, argument in enumerate(arguments):
            if "://" in argument:
                local[number] = str(Path(scratch, str(number)))
                words = (*tag_options(argument), f"--dest={local[number]}", argument)
                run_pip(pip_argv("download", *_DOWNLOAD, *words), runner)
        yield wheel_files(local, hint="Give a wheel, a folder with wheels, or a URL.")


def wheel_files(arguments: Sequence[str], *, hint: str) -> list[Path]:
    """Return the wheels in arguments, which are wheel files or folders with wheels.

    Raises:
        InputError: an argument is neither a file nor a folder, a folder cannot be read,
            or there is no wheel.
    """
    files: list[Path] = []
    for path in map(Path, arguments):
        if path.is_dir():
            try:
                files += wheels_below(path)
            except OSError as error:
                raise InputError(
                    f"{error.filename} cannot be read: {error.strerror}.",
                    hint="Change its permissions.",
                ) from error
        elif path.is_file():
            files.append(path)
        else:
            raise InputError(f"{path} is neither a file nor a folder.", hint=hint)
    if not files:
        raise InputError(f"There is no wheel in {', '.join(arguments)}.", hint=hint)
    return files


def tag_options(url: str) -> tuple[str, ...]:
    """Return pip options that accept a wheel name's tags (PEP 425) everywhere."""
    name = unquote(parse_url(url).path.rpartition("/")[2])
    try:
        tags = parse_wheel_filename(name)[3]
    except InvalidWheelFilename as error:
        raise InputError(
            f"{url} does not name a wheel: {error}.",
            hint="Give the URL of a .whl file.",
        ) from error
    words: set[str] = set()
    for tag in tags:
        words |= {f"--platform={tag.platform}", f"--abi={tag.abi}"}
    # pip takes one interpreter; the tags of a name differ only in its version.
    first = _INTERPRETER.fullmatch(max(tag.interpreter for tag in tags))
    if first:
        words |= {f"--implementation={first[1]}", f"--python-version={first[2]}"}
    return tuple(sorted(words))


def show(report: SetReport) -> None:
    """Print every report on standard output, then the findings about the set."""
    from rich.console import Console  # Start-up time: --json needs no screen.

    console = Console(highlight=False, width=width_of(sys.stdout) or 100)
    for wheel in report.wheels:
        render(wheel, console)
    if report.findings:
        render_findings(report.findings, console)


def raise_for_errors(report: SetReport) -> None:
    """Raise InspectionError if a finding is an error.

    Raises:
        InspectionError: at least one finding is an error.
    """
    findings = [*report.findings]
    for wheel in report.wheels:
        findings += wheel.findings
    count = sum(finding.severity is Severity.ERROR for finding in findings)
    if count:
        raise InspectionError(
            f"Inspection found {count} error{'s' if count > 1 else ''}.",
            hint="Apply the remedies in the report.",
        )
