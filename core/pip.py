"""Resolution and hash-locked download of wheels with pip, and the store of downloaded inputs."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from packaging.utils import canonicalize_name

from core.digests import sha256_of
from core.errors import InputError
from core.frozen import frozen
from core.process import ByteSink, LineSink, Runner, render, without_credentials
from core.store import ContentStore, mark_used

_PROGRESS = "Progress "
_ORIGIN = "origin"
"""Name of the file with the URL of an input whose index has no digest."""
_CHECKED = "device-code-checked"
"""Name of the file with the digest of the program that verified an input's device code."""

PIP_ENV_OVERRIDES = {
    "PIP_USER": "",
    "PIP_TARGET": "",
    "PIP_PREFIX": "",
    "PIP_ROOT": "",
    "PIP_REQUIRE_HASHES": "",
    "PIP_VERBOSE": "",
}
"""Changes of the environment that remove the user's settings for installations.

Pip installs nothing here.
"""


@frozen
class Resolved:
    """One distribution that pip chose for one Python.

    Attributes:
        name: normalised project name (PEP 503).
        url: download URL without credentials; empty for a wheel from this machine.
        sha256: 64 hexadecimal digits.
    """

    name: str
    version: str
    filename: str
    url: str = ""
    sha256: str
    requires_python: str = ""


def pip_argv(*words: str) -> tuple[str, ...]:
    """Return the argument list of a pip command of this Python."""
    return (sys.executable, "-m", "pip", *words)


class NothingFitsError(InputError):
    """No index, folder or page has a distribution that a requirement names."""


def run_pip(
    argv: Sequence[str],
    runner: Runner,
    *,
    log: Path | None = None,
    env: Mapping[str, str] | None = None,
    on_line: LineSink = lambda _: None,
) -> str:
    """Run a pip command and return its standard output.

    Args:
        log: file for the output of a failed command; None without a folder for it.
        env: changes of the environment, besides `PIP_ENV_OVERRIDES`.
        on_line: as in `Runner.run`; the reports of pip are too long to log.

    Raises:
        NothingFitsError, InputError: pip failed; the message is one sentence, and the
            hint names the log.
    """
    # An interrupted pip leaves its temporary folders behind.
    with tempfile.TemporaryDirectory(prefix="pip-") as folder:
        changes = {**PIP_ENV_OVERRIDES, "TMPDIR": folder, **(env or {})}
        done = runner.run(argv, env=changes, check=False, on_line=on_line)
    if done.returncode == 0:
        return done.stdout
    output = without_credentials(f"$ {render(argv)}\n{done.stdout}{done.stderr}")
    hint = "Check the URL, or the indexes in `pip config list`; -v prints pip's output."
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(output, encoding="utf-8")
        hint = f"Check the indexes in `pip config list`; the output of pip is in {log}."
    kind, problem = pip_problem(output)
    raise kind(problem, hint=hint)


def pip_problem(output: str) -> tuple[type[InputError], str]:
    """Return kind and sentence of pip's failure.

    pip reports an index that does not answer like one without distributions, after a
    warning for each try (messages of pip 21 to 26).
    """
    missing = re.search(
        r"^ERROR: No matching distribution found for (.+)$", output, re.MULTILINE
    )
    broken = re.findall(
        r"after connection broken by '\w+\([\"']?(.+?)[\"']?\)': /", output
    )
    if broken:
        host = re.search(r"host='([^']+)'", broken[-1])
        reason = re.sub(r"^HTTPS?Connection\w*\([^)]*\): ", "", broken[-1])
        index = host[1] if host else "its index"
        return InputError, f"pip cannot reach {index}: {reason}."
    if missing:
        return NothingFitsError, f"pip found no distribution for {missing[1]}."
    errors = [
        line.removeprefix("ERROR: ").strip()
        for line in output.splitlines()
        if line.startswith("ERROR: ")
    ]
    lines = errors or [line.strip() for line in output.splitlines() if line.strip()]
    return InputError, f"pip failed: {lines[0 if errors else -1].rstrip('.')}."


def fetch_argv(
    python: str, requirement_file: Path, folder: Path, find_links: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the pip command that downloads hash-locked requirements into a folder."""
    return pip_argv(
        "download",
        "--no-deps",
        "--only-binary=:all:",
        f"--python-version={python}",
        "--require-hashes",
        "--progress-bar=raw",
        f"--dest={folder}",
        f"--requirement={requirement_file}",
        *links_options(find_links),
    )


def links_options(find_links: Sequence[str]) -> tuple[str, ...]:
    """Return the options that make pip search folders and pages in addition to its index."""
    return tuple(f"--find-links={place}" for place in find_links)


def parse_report(text: str, *, hashed: bool = True) -> tuple[Resolved, ...]:
    """Read pip's installation report (its format version 1).

    Args:
        hashed: refuse distributions without a sha256, which is empty otherwise.

    Raises:
        InputError: the format is unknown, or a distribution has no sha256 or is not a
            wheel.
    """
    try:
        report = json.loads(text)
    except ValueError as error:
        raise InputError(
            "pip's installation report is not JSON.", hint="Update pip."
        ) from error
    if report.get("version") != "1":
        raise InputError(
            f"pip's installation report has format {report.get('version')!r}, not 1.",
            hint="Update pip.",
        )
    return tuple(_resolved(item, hashed=hashed) for item in report["install"])


def _resolved(item: dict[str, Any], *, hashed: bool) -> Resolved:
    metadata = item["metadata"]
    download = item["download_info"]
    parts = urlsplit(download["url"])
    url = urlunsplit(
        parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="")
    )
    sha256 = download.get("archive_info", {}).get("hashes", {}).get("sha256", "")
    filename = unquote(parts.path.rpartition("/")[2])
    if (hashed and not sha256) or not filename.endswith(".whl"):
        raise InputError(
            f"{url} is not a wheel with a sha256.",
            hint="Use an index of wheels with hashes.",
        )
    return Resolved(
        name=canonicalize_name(metadata["name"]),
        version=metadata["version"],
        filename=filename,
        url=url,
        sha256=sha256,
        requires_python=metadata.get("requires_python") or "",
    )


class InputStore(ContentStore):
    """Downloaded inputs by content: `<root>/<sha256>/<file name>`."""

    def path(self, item: Resolved) -> Path:
        """Return the path of an input, which may not exist yet."""
        return self.folder(item.sha256) / item.filename

    def has(self, item: Resolved) -> bool:
        """Return whether the input exists with the right content."""
        path = self.path(item)
        mark_used(path.parent)
        return path.is_file() and sha256_of(path) == item.sha256

    def fetch(
        self,
        items: Sequence[Resolved],
        python: str,
        runner: Runner,
        on_bytes: ByteSink,
        *,
        env: Mapping[str, str] | None = None,
        find_links: Sequence[str] = (),
    ) -> None:
        """Download inputs with pip, verify their sha256, and store them.

        Args:
            find_links: folders and pages that pip searches in addition to its index.

        Raises:
            InputError: a file is missing or has another sha256.
        """
        with self.scratch() as folder:
            requirements = folder / "requirements.txt"
            rows = [
                f"{item.name}=={item.version} --hash=sha256:{item.sha256}\n"
                for item in items
            ]
            requirements.write_text("".join(rows))
            argv = fetch_argv(python, requirements, folder / "files", find_links)
            run_pip(
                argv,
                runner,
                log=self.log(f"download-{python}"),
                env=env,
                on_line=progress_reader(on_bytes),
            )
            for item in items:
                came = folder / "files" / item.filename
                if not came.is_file() or sha256_of(came) != item.sha256:
                    raise InputError(
                        f"pip did not download {item.filename} with sha256"
                        f" {item.sha256}.",
                        hint="Clear pip's cache (`pip cache purge`) and try again.",
                    )
                self.path(item).parent.mkdir(exist_ok=True)
                came.rename(self.path(item))

    def download(
        self,
        item: Resolved,
        runner: Runner,
        on_bytes: ByteSink,
        env: Mapping[str, str] | None = None,
    ) -> Resolved:
        """Download an input without a digest, once, and return it with its sha256.

        Raises:
            InputError: pip downloads no such file.
        """
        for path in self.root.glob(f"[!.]*/{item.filename}"):
            stored = replace(item, sha256=path.parent.name)
            origin = path.parent / _ORIGIN
            known = origin.is_file() and origin.read_text(encoding="utf-8") == item.url
            if known and self.has(stored):
                return stored
        with self.scratch() as folder:
            words = ("download", "--no-deps", "--only-binary=:all:", f"--dest={folder}")
            argv = pip_argv(
                *words, "--progress-bar=raw", f"{item.name}=={item.version}"
            )
            log = self.log(f"download-{item.name}")
            run_pip(argv, runner, log=log, env=env, on_line=progress_reader(on_bytes))
            came = folder / item.filename
            if not came.is_file():
                raise InputError(
                    f"pip did not download {item.filename}.",
                    hint="Try again; the index may have changed.",
                )
            item = replace(item, sha256=sha256_of(came))
            self.path(item).parent.mkdir(exist_ok=True)
            came.rename(self.path(item))
            (self.path(item).parent / _ORIGIN).write_text(item.url, encoding="utf-8")
        return item

    def log(self, name: str) -> Path:
        """Return the file for the output of a failed pip command, beside the store.

        The next failure replaces it.
        """
        return self.root.parent / "logs" / f"pip-{name}.log"

    def adopt(self, item: Resolved, path: Path) -> None:
        """Store a copy of a locally built file atomically."""
        with self.scratch() as folder:
            fresh = folder / item.filename
            shutil.copyfile(path, fresh)
            if sha256_of(fresh) != item.sha256:
                raise InputError(
                    f"{path} was changed while it was copied.",
                    hint="Run the same command again.",
                )
            self.path(item).parent.mkdir(exist_ok=True)
            fresh.replace(self.path(item))

    def was_checked(self, item: Resolved, by: str) -> bool:
        """Return whether `check_done` was called for this input by the same program."""
        try:
            return (self.path(item).parent / _CHECKED).read_text(encoding="utf-8") == by
        except OSError:
            return False

    def check_done(self, item: Resolved, by: str) -> None:
        """Record that every checksum in the input's device code was verified.

        Args:
            by: digest of the verifying program; another program verifies again.
        """
        (self.path(item).parent / _CHECKED).write_text(by, encoding="utf-8")


def progress_reader(on_bytes: ByteSink) -> LineSink:
    """Return a reader of the lines of `--progress-bar=raw`: Progress <done> of <total>."""

    def read(line: str) -> None:
        words = line.split()
        if line.startswith(_PROGRESS) and len(words) == 4:
            on_bytes(int(words[1]), int(words[3]))

    return read
