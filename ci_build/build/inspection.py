"""`inspect` as a person asks for it: wheels by path, folder or URL; one report each, and one on all together."""

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

from core import layouts, targets
from core.errors import InputError, InspectionError, WheelSetError
from core.model import Finding, Progress, RocmVersion, Severity, WheelSet
from core.process import Runner
from core.units import parse_url
from core.wheelset import read_set
from wheelkit.findings import as_published, finding, sort_findings
from wheelkit.inspect.inspect import inspect_wheel
from wheelkit.inspect.model import WheelReport
from wheelkit.inspect.text import render, render_findings
from wheelkit.inspect.wheel_set import SetReport, inspect_set, wheels_below

_DOWNLOAD = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--ignore-requires-python")
_INTERPRETER = re.compile(r"([a-z]+)([0-9]+)")


def inspect(
    words: Sequence[str],
    *,
    expected: str | None,
    rocm: RocmVersion | None,
    verify: bool,
    progress: Progress,
    runner: Runner,
) -> SetReport:
    """Report on every wheel that the words name.

    Args:
        words: wheel files, folders, or URLs (fetched with pip, so that its configuration counts).
        expected: targets that device code must be for, as `--targets` takes them; None asks for nothing.
        rocm: the ROCm whose libraries may be needed; None allows those of any.

    Raises:
        InputError: a word names no wheel.
    """
    allowed = None if rocm is None else layouts.allowed_sonames(rocm)
    wanted = None if expected is None else targets.expand(expected)

    sets = _sets(words)
    taken = {wheel.sha256 for wheel_set in sets.values() for wheel in wheel_set.wheels if wheel.as_published}

    def report(path: Path) -> WheelReport:
        found = inspect_wheel(
            path,
            expected=wanted,
            covers=targets.covers(),
            machs=targets.machs(),
            allow_list=targets.lists()["compiler-supported"],
            allowed_sonames=allowed,
            verify=verify,
            progress=progress,
        )
        return replace(found, findings=sort_findings(as_published(found.findings))) if found.sha256 in taken else found

    with _collected(words, runner) as paths:
        found = inspect_set(paths, report)
    return replace(found, findings=sort_findings((*found.findings, *_unlike(sets, found.wheels))))


def _sets(words: Sequence[str]) -> dict[Path, WheelSet]:
    """What the wheels.json of each named folder says; folders of others have none, or another one."""
    sets = {}
    for word in words:
        with suppress(WheelSetError):
            sets[Path(word)] = read_set(Path(word))
    return sets


def _unlike(sets: Mapping[Path, WheelSet], wheels: Sequence[WheelReport]) -> Iterator[Finding]:
    """Wheels of a set that its folder lacks, or has with other bytes."""
    there = {(wheel.filename, wheel.sha256) for wheel in wheels}
    for folder, wheel_set in sets.items():
        for wheel in wheel_set.wheels:
            if not (folder / wheel.filename).is_file():
                yield finding("set-wheel-missing", f"{folder}/wheels.json names it.", member=wheel.filename)
            elif (wheel.filename, wheel.sha256) not in there:
                text = f"{folder}/wheels.json says sha256 {wheel.sha256}."
                yield finding("set-wheel-differs", text, member=wheel.filename)


@contextmanager
def _collected(words: Sequence[str], runner: Runner) -> Iterator[list[Path]]:
    with tempfile.TemporaryDirectory(prefix="inspect-") as scratch:
        paths: list[Path] = []
        for number, word in enumerate(words):
            if "://" in word:
                folder = Path(scratch, str(number))
                runner.run([*_DOWNLOAD, "--only-binary=:all:", *tag_options(word), f"--dest={folder}", word])
                paths += wheels_below(folder)
            elif Path(word).is_dir():
                paths += wheels_below(Path(word))
            elif Path(word).is_file():
                paths.append(Path(word))
            else:
                raise InputError(
                    f"{word} is neither a file nor a folder.", hint="Name a wheel, a folder with wheels, or a URL."
                )
        if not paths:
            raise InputError(f"No wheel in {', '.join(words)}.", hint="Name a wheel, a folder with wheels, or a URL.")
        yield paths


def tag_options(url: str) -> tuple[str, ...]:
    """What makes pip fetch a wheel that is not for this Python or platform: the tags in its name (PEP 425)."""
    name = unquote(parse_url(url).path.rpartition("/")[2])
    try:
        tags = parse_wheel_filename(name)[3]
    except InvalidWheelFilename as error:
        raise InputError(f"{url} does not name a wheel: {error}.", hint="Give the URL of a .whl file.") from error
    words = {f"--platform={tag.platform}" for tag in tags} | {f"--abi={tag.abi}" for tag in tags}
    found = next((match for tag in tags if (match := _INTERPRETER.fullmatch(tag.interpreter))), None)
    if found:
        words |= {f"--implementation={found[1]}", f"--python-version={found[2]}"}
    return tuple(sorted(words))


def show(report: SetReport) -> None:
    """Print every report on standard output, and what is wrong between the wheels at the end."""
    from rich.console import Console

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 100)
    for wheel in report.wheels:
        render(wheel, console)
    if report.findings:
        render_findings(report.findings, console)


def raise_for_errors(report: SetReport) -> None:
    """Make errors count.

    Raises:
        InspectionError: at least one finding is an error.
    """
    count = sum(
        finding.severity is Severity.ERROR
        for findings in (report.findings, *(wheel.findings for wheel in report.wheels))
        for finding in findings
    )
    if count:
        raise InspectionError(
            f"Inspection found {count} error{'s' if count > 1 else ''}.", hint="Each says its remedy."
        )
