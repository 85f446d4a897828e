"""Build of the site by mkdocs with Material, from a lock that only this command installs.

Material for MkDocs is stable and complete without a network; Zensical, its successor,
reads the same configuration but is at version 0.1 and ignores what it does not know, so
that a strict build proves less.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from ci_build.docs.docs_pages import write_pages
from ci_build.docs.reference import DocsRequest
from ci_build.wheelset.output_dir import replace_folder
from core.errors import ProcessError, RequestError
from core.model import Progress
from core.os_errors import writes_to
from core.own_files import program_version
from core.process import Runner
from promotion.gates.common.uv_installer import configured_uv, locked_environment

LOCK = Path(__file__).parents[2] / "build" / "requirements-docs.lock"
CONFIG = Path(__file__).with_name("mkdocs.yml")
STORE = "docs"
"""Folder of the cache with the environment of mkdocs."""
_SECONDS = 300.0
_ENVIRONMENT = {
    "DOCS_VERSION": f"ci_build {program_version()}",
    # Dates in the output would make every build different.
    "SOURCE_DATE_EPOCH": "315532800",
    # Material prints an advertisement about MkDocs 2 otherwise.
    "NO_MKDOCS_2_WARNING": "1",
    "DISABLE_MKDOCS_2_WARNING": "true",
}
_NEEDS_URL = ("404.html", "sitemap.xml", "sitemap.xml.gz")
"""Files of mkdocs that work only at a known URL."""
LIST = "site-files.json"
"""File of a site that lists its other files, so that a folder with more files is not replaced."""


def check_out(out: Path) -> None:
    """Refuse a folder with other files than an earlier site, before anything is built.

    Raises:
        RequestError: `out` is a file, or a folder that contains something else.
    """
    if out.exists() and not out.is_dir():
        raise RequestError(f"{out} is not a folder.", hint="Give another --out.")
    if out.is_dir() and (foreign := _foreign_files(out)):
        raise RequestError(
            f"{out} has files that do not belong to a site, such as {foreign[0]}.",
            hint="Give another --out, or move these files.",
        )


def build_site(
    request: DocsRequest, out: Path, *, cache: Path, runner: Runner, progress: Progress
) -> None:
    """Build the site and replace `out` by it; if the build fails, `out` is unchanged.

    Args:
        cache: folder of all caches.

    Raises:
        RequestError: `out` has other files.
        ProcessError: a page has a broken link or another problem that mkdocs reports.
        MachineError: mkdocs cannot be installed.
    """
    out = out.absolute()  # mkdocs runs in another folder
    check_out(out)
    progress.step("install mkdocs")
    uv = configured_uv(runner)
    environment = locked_environment(cache / STORE, "mkdocs", LOCK, uv, runner)
    out.parent.mkdir(parents=True, exist_ok=True)
    with (
        writes_to(out),
        tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as name,
    ):
        work = Path(name)
        site = work / "site"
        progress.step("write the pages of the site")
        write_pages(request, work / "pages")
        # The files that it names are relative to it.
        shutil.copy(CONFIG, work)
        shutil.copytree(CONFIG.with_name("theme"), work / "theme")
        progress.step("build the site")
        # With --quiet, mkdocs drops its warnings before it counts them, and `strict`
        # has no effect.
        argv = (str(environment / "bin" / "python"), "-I", "-m", "mkdocs", "build")
        done = runner.run(
            argv, env=_ENVIRONMENT, cwd=name, check=False, timeout=_SECONDS
        )
        if done.returncode:
            raise ProcessError(
                f"mkdocs refused the pages: {_problems(done.stderr)}",
                hint="Correct the links and names in these pages.",
            )
        for file in _NEEDS_URL:
            (site / file).unlink(missing_ok=True)
        (site / LIST).write_text(json.dumps(_files(site), indent=1), encoding="utf-8")
        replace_folder(site, out, work / "old")


def _foreign_files(out: Path) -> list[str]:
    """Return the files of a folder that the list of a site does not name."""
    try:
        own = {LIST, *json.loads((out / LIST).read_bytes())}
    except (FileNotFoundError, ValueError, TypeError):
        own = set()
    return [name for name in _files(out) if name not in own]


def _files(folder: Path) -> list[str]:
    """Return the sorted paths of all files and links, relative to the folder."""
    return sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir()
    )


def _problems(text: str) -> str:
    """Return the warnings of mkdocs as one line."""
    lines = [line.strip() for line in text.splitlines()]
    problems = [line for line in lines if line.startswith(("WARNING", "ERROR"))]
    return " ".join(problems or lines)[-2000:]
