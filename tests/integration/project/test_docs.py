"""Pages of the documentation: their commands run in order in an empty folder; their paths and links exist."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import click
import pytest

from ci_build.docs.pages import PICTURES, navigation
from ci_build.docs.request import DocsRequest
from ci_build.release import gating
from ci_build.release.request import GATES
from core.defaults import defaults
from core.process import HostRunner
from promotion.gates.common.pythons import find_pythons
from tests.integration.conftest import Released, succeed
from tests.support.chromium import chromium
from tests.support.commands import parse
from tests.support.machine import need

ROOT = Path(__file__).resolve().parents[3]
FENCE = re.compile(r"```console\n(.*?)```", re.DOTALL)
DOCS = sorted((ROOT / "docs").glob("*.md"))
ELSEWHERE = {
    "python3 build/test": "this very run",
    ".venv/bin/python -m benchmarks.repair": "test_benchmark_repair.py",
    ".venv/bin/python -m tests.support.pictures": "test_pictures.py, which compares its pictures",
    ".venv/bin/python -m pip wheel ./kernels --no-deps -C targets=gfx942 --wheel-dir=kernels-dist": (
        "test_kernel_project.py, with one module"
    ),
}
"""Commands that another test, or this very run, covers."""
TUTORIAL = "docs/tutorial.md"
RELEASE = "python3 build/ci_build release --local"
BUNDLED = ["python3.12", "wheelhouse/program/build/ci_build"]
"""The program in a folder for machines without a network, and the Python that the folder is for."""


PAGES = (
    "README.md",
    "docs/build-from-source.md",
    "docs/cluster.md",
    "docs/documentation.md",
    "docs/gpu-tests.md",
    "docs/kernels.md",
    "docs/offline-tests.md",
    "docs/operate-an-index.md",
    "docs/release.md",
    "docs/trust.md",
    TUTORIAL,
    "docker/README.md",
    "promotion/gates/README.md",
)
"""Pages with commands. `index serve` of the README needs the released index, so they start from a finished release."""


def commands(page: str = PAGES[0]) -> list[str]:
    text = (ROOT / page).read_text()
    lines = [line for block in FENCE.findall(text) for line in block.splitlines()]
    return [line.split("#")[0].strip() for line in lines if line.strip()]


def test_tutorial_installs_the_versions_that_release_local_builds() -> None:
    jax = defaults()["build"]["jax_version"]
    targets = defaults()["release_local"]["targets"].replace(",", ".")
    [line] = [line for line in commands(TUTORIAL) if "jax-rocm7-plugin" in line]
    plugin = re.compile(rf"jax-rocm7-plugin=={re.escape(jax)}\+rocm7[0-9.]+\.{re.escape(targets)}")
    assert {f"jax=={jax}", f"jaxlib=={jax}"} < set(line.split())
    assert plugin.fullmatch(line.split()[-1])


def test_readme_starts_with_the_two_commands() -> None:
    assert commands()[:2] == ["python3 build/ci_build release --local", "python3 build/test"]


def test_readme_fits_one_screen_and_links_every_page() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 70
    assert [page for page in PAGES[1:] if f"({page})" not in text] == []


def test_every_page_with_commands_is_tested() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "docker/README.md", ROOT / "promotion/gates/README.md"]
    shown = {str(page.relative_to(ROOT)) for page in pages if "```console" in page.read_text()}
    assert shown == {*PAGES, "CONTRIBUTING.md"}
    assert commands("CONTRIBUTING.md") == ["python3 build/test --list"]


ALL_PAGES = [*ROOT.glob("*.md"), *DOCS, ROOT / "docker/README.md", ROOT / "promotion/gates/README.md"]


BLOCK = re.compile(r"```(?:console|sh|yaml)\n(.*?)```", re.DOTALL)
SPAN = re.compile(r"`((?:python3 build/)?ci_build [^`]+)`")


def test_program_accepts_every_command_that_a_page_mentions() -> None:
    """Also commands that need AMD's machines, or several machines, exist with their options and values."""
    found: list[str] = []
    for page in ALL_PAGES:
        text = page.read_text()
        for block in BLOCK.findall(text):
            lines = block.replace("\\\n", " ").splitlines()
            found += [line.strip() for line in lines if re.match(r"\s*(python3 build/)?ci_build ", line)]
        found += SPAN.findall(" ".join(text.split()))
    assert len(found) > 100
    for line in found:
        words = shlex.split(line.replace("…", " "), comments=True)
        end = next((at for at, word in enumerate(words) if word in (";", "&", "&&", "|", "||", ">")), len(words))
        start = next(at for at, word in enumerate(words) if word.endswith("ci_build"))
        try:
            parse(words[start + 1 : end])
        except click.UsageError as error:
            pytest.fail(f"{line}: {error.format_message()}")


def test_modules_that_a_page_starts_exist() -> None:
    found = {
        name for page in ALL_PAGES for name in re.findall(r"-m ((?:benchmarks|kernels|tests)[\w.]+)", page.read_text())
    }
    assert len(found) > 10
    assert [name for name in found if importlib.util.find_spec(name) is None] == []


def test_certificates_of_the_cluster_page_are_valid(tmp_path: Path) -> None:
    need("bash", "openssl")
    (script,) = (block for block in re.findall(r"```sh\n(.*?)```", (ROOT / "docs/cluster.md").read_text(), re.DOTALL)
                 if block.startswith("openssl"))  # fmt: skip
    subprocess.run(["bash", "-euc", script], cwd=tmp_path, check=True, capture_output=True)
    for name in ("head", "node", "me"):
        subprocess.run(["openssl", "verify", "-CAfile", "ca.pem", f"{name}.pem"], cwd=tmp_path, check=True)
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        context.load_cert_chain(tmp_path / f"{name}.pem")
        assert (tmp_path / f"{name}.pem").stat().st_mode & 0o077 == 0


@pytest.mark.heavy
@pytest.mark.network
@pytest.mark.parametrize("page", PAGES)
def test_commands_of_page_run(
    page: str, tmp_path: Path, released: Released, work_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The folder holds the result of `release --local`, as a reader's would.
    released.copy(tmp_path)
    monkeypatch.setenv("CI_BUILD_CACHE_DIR", str(work_cache))
    monkeypatch.setenv("PWD", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for command in commands(page):
        # The folder has the result of the tutorial's first command, which the README's test runs.
        if command in ELSEWHERE or (page, command) == (TUTORIAL, RELEASE):
            continue
        words = shlex.split(os.path.expandvars(command))
        if page == TUTORIAL and words[1:2] == ["-m"]:
            _run_python(words)
            continue
        argv = [sys.executable, str(ROOT / "build" / "ci_build"), *words[2:]]
        if words[:2] == BUNDLED:
            argv[:2] = [str(find_pythons(["3.12"], HostRunner(dict(os.environ)))["3.12"]), words[1]]
        else:
            assert words[:2] == ["python3", "build/ci_build"], command
        if words[2:4] == ["index", "serve"]:
            _serve(argv)
            continue
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stderr}"


def _run_python(words: list[str]) -> None:
    """Run a command of Python in the tutorial; its environment has the wheels of the set in the end."""
    argv = [sys.executable if words[0] == "python3" else words[0], *words[1:]]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}\n{done.stderr}"
    if words[-2:] == ["pip", "list"]:
        assert re.search(r"^jax-rocm7-plugin +\S+\+rocm", done.stdout, re.MULTILINE), done.stdout


def _serve(argv: list[str]) -> None:
    with subprocess.Popen([*argv, "--port", "0"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        with urllib.request.urlopen(f"{url}v2/multi-arch/simple/", timeout=10) as answer:
            assert b"jax-rocm7-plugin" in answer.read()
        process.terminate()
        began = time.monotonic()
        assert process.wait(10) == 130
        assert time.monotonic() - began < 5


PATHS_OF = [
    *PAGES[1:-1],
    "docs/architecture.md",
    "docs/continuous-integration.md",
    "CONTRIBUTING.md",
    "promotion/gates/README.md",
]


@pytest.mark.parametrize("page", PATHS_OF)
def test_paths_that_a_page_names_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    tops = "core|wheelkit|ci_build|promotion|kernels|pjrt|plugin|tests|docker|benchmarks"
    named = re.findall(rf"`((?:{tops})/[\w./-]*)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in DOCS)])
def test_links_of_a_page_lead_to_files(page: str) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text())
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (ROOT / page).parent.joinpath(link).exists()] == []


def test_glossary_is_sorted_with_one_line_a_noun() -> None:
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)[1:]
    nouns = [noun.lower() for noun, _ in rows]
    assert len(nouns) > 40
    assert nouns == sorted(set(nouns))


def test_gates_readme_lists_the_registered_gates() -> None:
    text = (ROOT / "promotion" / "gates" / "README.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (the set|each target) \|", text, re.MULTILINE)
    made = [gating.make_gate(name, gating.GateOptions()) for name in GATES]
    assert rows == [(gate.name, "each target" if gate.per_target else "the set") for gate in made]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, work_cache: Path) -> Path:
    """Return the site in a folder."""
    folder = tmp_path_factory.mktemp("built") / "site"
    succeed("docs", "--out", str(folder), f"--cache-dir={work_cache}")
    return folder


@pytest.mark.heavy
@pytest.mark.network
def test_site_is_strict_reproducible_and_complete(
    site: Path, tmp_path: Path, work_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The strict build is clean and repeatable, refuses broken links, and its files load nothing from elsewhere."""
    monkeypatch.setenv("CI_BUILD_CACHE_DIR", str(work_cache))
    again = tmp_path / "again"
    succeed("docs", "--out", str(again))
    argv = [sys.executable, str(ROOT / "build" / "ci_build"), "docs"]
    (tmp_path / "bad.md").write_text("# Tables\n\n[one][1] [two][2]\n\n[1]: nothing.md\n[2]: trust.md#nothing\n")
    argv += ["--out", str(tmp_path / "bad"), "--compatibility", str(tmp_path / "bad.md")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, (tmp_path / "bad").exists()) == (12, False)
    assert "'nothing.md', but the target" in done.stderr
    assert "does not contain an anchor '#nothing'" in done.stderr
    files = {path.relative_to(site): path.read_bytes() for path in site.rglob("*") if path.is_file()}
    assert files == {path.relative_to(again): path.read_bytes() for path in again.rglob("*") if path.is_file()}
    pages = {path: data.decode() for path, data in files.items() if path.suffix == ".html"}
    assert len(pages) > 35
    loaded = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=["']?((?:https?:)?//[^"' >]+)""")
    assert {path: found for path, text in pages.items() if (found := loaded.findall(text))} == {}
    styles = [data.decode() for path, data in files.items() if path.suffix == ".css"]
    assert [url for text in styles for url in re.findall(r"url\((?:https?:)?//[^)]+\)|@import[^;]+", text)] == []
    titles = {
        title
        for section in navigation(DocsRequest(commands=()))
        for rows in section.values()
        for row in rows
        for title in row
    }
    assert [title for title in titles if not re.search(rf">\s*{title}\s*<", pages[Path("index.html")])] == []
    assert all((site / path.parent / link).exists() for path, text in pages.items() for link in _local_links(text))


@pytest.mark.heavy
@pytest.mark.network
def test_site_works_from_a_folder(site: Path) -> None:
    """Without a server, Chromium shows every picture, follows the dark mode of the system, and searches."""
    with chromium() as tab:
        shutil.copytree(site, tab.folder / "site")
        address = f"file:///{(tab.folder / 'site').relative_to(tab.root)}"
        pictures = set[str]()
        for path in sorted(site.rglob("*.html")):
            if re.search(r"<img[^>]+pictures/", path.read_text()):
                tab.visit(f"{address}/{path.relative_to(site)}", width=390, dark=True)
                shown = "[...document.querySelectorAll('.md-content img')].map((one) => [one.src, one.naturalWidth])"
                found = dict(tab.value(shown))
                assert min(found.values()) > 0
                pictures |= {source.rpartition("/")[2] for source in found}
                assert tab.value("document.documentElement.scrollWidth") == 390
                assert tab.value("document.body.dataset.mdColorScheme") == "slate"
                assert tab.logged == []
        assert pictures == {path.name for path in (ROOT / PICTURES).iterdir()}
        tab.visit(f"{address}/index.html", width=1300)
        links = tab.value(SEARCH)
        (hit,) = (link for link in links if link.endswith("#symbol-missing"))
        tab.visit(hit, width=1300)
        assert tab.value("document.getElementById('symbol-missing').textContent").startswith("symbol-missing")
        assert tab.value("document.querySelectorAll('mark').length") > 0
        assert tab.logged == []


SEARCH = """
(async () => {
  const field = document.querySelector('.md-search__input');
  field.focus();
  field.value = 'symbol-missing';
  for (const kind of ['input', 'keyup']) field.dispatchEvent(new Event(kind, {bubbles: true}));
  for (let tries = 0; tries < 300; tries += 1) {
    const found = [...document.querySelectorAll('.md-search-result__link')].map((link) => link.href);
    if (found.length) return found;
    await new Promise((done) => setTimeout(done, 100));
  }
  return [];
})()
"""


def _local_links(text: str) -> list[str]:
    links = re.findall(r"""<a\b[^>]*?href=["']?([^"' >#]+)""", text)
    return [link for link in links if "://" not in link and not link.startswith("mailto:")]
