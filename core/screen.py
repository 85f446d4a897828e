"""The place of all messages of a command.

A terminal, the foldable log of a CI service, or plain lines.
"""

from __future__ import annotations

import enum
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from core.display import Display, Line
from core.model import Finding, Severity
from core.terminal import fold, width_of

_MOST_PLACES = 3
"""Number of files that a warning names if several have the same problem."""
_WORKFLOW_COMMAND = re.compile(r"^(\s*):(?=:)|##(?=\[)", re.MULTILINE)


class Folding(enum.StrEnum):
    """Markers with which the log of a CI service folds the lines of a group."""

    NONE = ""
    GITHUB = "github"
    """Source: GitHub Actions, "Workflow commands", grouping log lines. Groups cannot be nested."""
    GITLAB = "gitlab"
    """Source: GitLab, "CI/CD job logs", custom collapsible sections."""


class Screen:
    """Standard error, shared by all threads: each message is written whole.

    Args:
        terminal: whether to draw a live display instead of plain lines.
        folding: markers around each group.
        quiet: whether to print only warnings and errors.
    """

    def __init__(
        self, *, terminal: bool, folding: Folding = Folding.NONE, quiet: bool = False
    ) -> None:
        self.terminal = terminal and not quiet
        self.folding = folding
        self.quiet = quiet
        self.lock = threading.RLock()
        self.collects = False
        self.display: Display | None = None
        self.root = Line()
        self._titles: list[str] = []
        self._plans: dict[bool, list[str]] = {False: [], True: []}
        self._total = 0
        self._texts: dict[str, None] = {}
        self._warnings: dict[tuple[str, ...], dict[str, None]] = {}

    def line(self, text: str, *, whole: bool = False) -> None:
        """Print one line, unless the screen is quiet."""
        if not self.quiet:
            self.write(text, whole=whole)

    def write(self, text: str, *, whole: bool = False) -> None:
        """Print lines, above the display if there is one.

        On a terminal, long lines are broken between words.

        Args:
            whole: whether lines stay whole, such as commands that users copy.
        """
        with self.lock:
            text = text if whole else fold(text, width_of(sys.stderr))
            if self.display is not None:
                self.display.print(text)
                return
            if (
                self.folding is Folding.GITHUB
            ):  # output of a program must not end the group, or run other commands
                text = _WORKFLOW_COMMAND.sub(
                    lambda match: f"{match[1]}: " if match[1] is not None else "# #",
                    text,
                )
            elif self.folding is Folding.GITLAB:
                text = text.replace("\r", "")
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def notice(self, text: str) -> None:
        """Print a warning immediately; each text once."""
        with self.lock:
            if text not in self._texts:
                self._texts[text] = None
                self.write(f"warning: {text}")

    def warning(self, text: str) -> None:
        """Print a warning, each text once; at the end of the command if warnings are collected."""
        with self.lock:
            if self.collects:
                self._warnings.setdefault((text,), {})
            else:
                self.notice(text)

    def finding(self, finding: Finding, where: str) -> None:
        """Print a finding.

        If warnings are collected, a warning or note at the end, once for all its
        places.
        """
        place = " ".join(part for part in (where, finding.member) if part)
        with self.lock:
            if self.collects and finding.severity is not Severity.ERROR:
                kind = (
                    f"{finding.severity}: {finding.code}: ",
                    f": {finding.message} {finding.remedy}".rstrip(),
                )
                self._warnings.setdefault(kind, {})[place] = None
                return
        self.write(
            f"{finding.severity}: {finding.code}: {place}: {finding.message}"
            f" {finding.remedy}".rstrip()
        )

    def close(self) -> None:
        """Print the collected warnings; later ones are printed immediately."""
        with self.lock:
            warnings = self._warnings
            self._warnings = {}
            self.collects = False
            for words, places in warnings.items():
                if len(words) == 1:
                    self.notice(words[0])
                    continue
                more = (
                    f" and {len(places) - _MOST_PLACES} more"
                    if len(places) > _MOST_PLACES
                    else ""
                )
                self.write(
                    f"{words[0]}{', '.join([*places][:_MOST_PLACES])}{more}{words[1]}"
                )

    def plan(self, names: Sequence[str]) -> None:
        """Set the steps to come.

        Of the current group, or of the whole command outside of groups.
        """
        with self.lock:
            self._plans[bool(self._titles)] = [*names]
            if not self._titles:
                self._total = len(names)

    def begin(self, name: str, *, inside: bool = True, parallel: bool = False) -> None:
        """Remove a step that begins from the steps to come.

        Before a step that is not parallel, all others are over.
        """
        coming = self._plans[inside]
        for number, planned in enumerate(coming):
            if name.startswith(planned):
                del coming[number if parallel else 0 : number + 1]
                return

    @contextmanager
    def group(self, title: str) -> Iterator[None]:
        """Fold or display the output of one part of the work.

        A group inside another one belongs to the outer one.
        """
        started = time.monotonic()
        section = f"ci_build_{os.getpid()}_{time.monotonic_ns()}"
        with self.lock:
            outermost = not self._titles
            self._titles.append(title)
        try:
            with self.lock:
                if outermost:
                    self.begin(title, inside=False)
                    self._open(" ".join(title.split()), section)
                else:
                    self.line(title)
            yield
        finally:
            with self.lock:
                if outermost and self.display is not None:
                    self.display.stop()
                    self.display = None
                self._titles.remove(title)
                self.line(f"  {time.monotonic() - started:.1f} s")
                if outermost:
                    self._plans[True] = []
                    self._close(section)

    def _open(self, title: str, section: str) -> None:
        match self.folding:
            case Folding.GITHUB:
                self._marker(f"::group::{title.replace('%', '%25')}")
            case Folding.GITLAB:
                self._marker(
                    f"\x1b[0Ksection_start:{int(time.time())}:{section}\r\x1b[0K{title}"
                )
            case Folding.NONE:
                self.line(title)
        if self.terminal:
            self.root.started = time.monotonic()
            self.display = Display(self.lock, self._content)
            self.display.start()

    def _close(self, section: str) -> None:
        match self.folding:
            case Folding.GITHUB:
                self._marker("::endgroup::")
            case Folding.GITLAB:
                self._marker(
                    f"\x1b[0Ksection_end:{int(time.time())}:{section}\r\x1b[0K"
                )
            case Folding.NONE:
                pass

    def _marker(self, text: str) -> None:
        if not self.quiet:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def _content(self) -> tuple[Line, Sequence[str]]:
        """Return the title with the running work, and the names of the steps to come."""
        coming = self._plans[False]
        total = self._total
        parts = [f"step {total - len(coming)} of {total}"] if total else []
        if self._warnings:
            parts.append(
                f"{len(self._warnings)} warning{'s' if len(self._warnings) > 1 else ''}"
            )
        self.root.label = ", ".join(parts)
        self.root.step = self._titles[-1] if self._titles else ""
        return self.root, [*self._plans[True], *coming]
