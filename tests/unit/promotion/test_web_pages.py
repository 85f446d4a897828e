"""Pages for people: complete, escaped, small, reproducible, and the same from an update as from the ledger."""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from benchmarks.counting import counted
from ci_build import cli
from core.errors import BucketError
from promotion.compatibility.evidence import EvidenceChecks
from promotion.evidence.test_results import TestVerdict
from promotion.gates.device.evidence import RESULTS
from promotion.index.audit import verify
from promotion.index.install_commands import amd_image_tag
from promotion.index.json_types import ListedIndex
from promotion.index.ledger_state import EntryKind
from promotion.index.listing import listing_page, lists_index, parse_listing, update_listing
from promotion.index.operations import mark
from promotion.index.publish import pages_changed, publish
from promotion.index.status import MAX_ROWS
from promotion.index.summary import load_summary
from promotion.storage.bucket import Bucket
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.keys import LISTING
from promotion.website.plots import stacked_bars
from promotion.website.render import PAGES_VERSION, visible
from tests.support import web_pages
from tests.support.promoting import NOW, POLICY, RELEASED, go, staged_in
from tests.support.web_pages import COMPILED, DEVICE, HOSTILE, STRUCTURE, index_page, indexes_page, set_page
from tests.support.wheel_sets import make_wheels

PAGES: Mapping[str, Callable[[], bytes]] = {
    "index": index_page,
    "hostile index": web_pages.hostile_index_page,
    "set": set_page,
    "indexes": indexes_page,
    "hostile set": functools.partial(set_page, HOSTILE),
    "hostile indexes": functools.partial(indexes_page, HOSTILE),
}


class Elements(HTMLParser):
    """Parser that collects tags, attributes, texts of scripts and styles, and all other text."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: dict[str, list[str]] = {"script": [], "style": []}
        self.text = ""
        self._inside = ""
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside in self.texts:
            self.texts[self._inside].append(data)
        else:
            self.text += data

    def values(self, name: str) -> list[str]:
        return [attributes[name] for _, attributes in self.tags if name in attributes]


def sections(page: bytes) -> dict[str, str]:
    """Return gfx target -> text of its section, with the commands."""
    found = re.findall(r'<details name="gpu" id="([^"]*)">(.*?)</details>', page.decode(), re.DOTALL)
    return {target: html.unescape(re.sub(r"<[^>]*>", "", body)) for target, body in found}


def tables(page: bytes) -> dict[str, list[list[str]]]:
    """Return label of a table -> texts of the cells of its rows."""
    found = re.findall(r'aria-label="([^"]*)">\s*<table.*?<tbody>(.*?)</tbody>', page.decode(), re.DOTALL)
    cell, tag = re.compile(r"<t[dh]\b[^>]*>(.*?)</t[dh]>"), re.compile("<[^>]*>")
    return {
        label: [[tag.sub("", text) for text in cell.findall(row)] for row in body.split("</tr>")[:-1]]
        for label, body in found
    }


@pytest.mark.parametrize("kind", PAGES)
def test_page_permits_only_its_own_script_and_style(kind: str) -> None:
    found = Elements(PAGES[kind]())
    (policy,) = (one["content"] for tag, one in found.tags if one.get("http-equiv") == "Content-Security-Policy")
    names = [tag for tag, _ in found.tags]
    data = [one for tag, one in found.tags if tag == "script" and one.get("type") == "application/json"]
    code = found.texts["script"][len(data) :]
    assert (len(code), len(found.texts["style"]), names.count("script")) == (1, 1, 1 + len(data))
    for directive, text in (("script-src", code[0]), ("style-src", found.texts["style"][0])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    attributes = {name for _, one in found.tags for name in one}
    assert not [name for name in attributes if name.startswith("on") or name in ("style", "src")]
    assert {"img", "iframe", "link", "object"}.isdisjoint(names)
    assert not [link for link in found.values("href") if re.match(r"(?i)[a-z]+:|//", link)]
    assert not re.search("[\u202a-\u202e\u2066-\u2069]", PAGES[kind]().decode())


def test_hostile_text_is_shown_as_text() -> None:
    """Each place shows the text itself, so nothing was dropped either."""
    assert Elements(web_pages.hostile_index_page()).text.count(str(visible(HOSTILE))) > 20
    assert Elements(set_page(HOSTILE)).text.count(str(visible(HOSTILE))) > 15
    assert Elements(indexes_page(HOSTILE)).text.count(str(visible(HOSTILE))) >= 4


def test_gpu_has_its_tier_in_a_sentence_and_commands_of_its_newest_set() -> None:
    found = sections(index_page(3, ("gfx942", "gfx950", "gfx1100")))
    assert [*found] == ["gfx942", "gfx950", "gfx1100"]
    assert "Instinct MI300A, MI300X, MI325X" in found["gfx942"]
    assert "No GPU of this target ran this set" in found["gfx950"]
    assert "no GPU ran this set" in found["gfx942"]
    assert "Tests of JAX passed on a GPU of this target" in found["gfx1100"]
    simple = "URL-of-this-page/simple/"
    assert f"pip install --extra-index-url {simple} jax-rocm7-plugin==0.10.2+rocm7.3" in found["gfx942"]
    assert f"uv pip install --extra-index-url {simple} jax-rocm7-plugin==0.10.2+rocm7.3" in found["gfx942"]
    lock = (
        f"--require-hashes --no-deps --extra-index-url {simple} -r URL-of-this-page/sets/{3:064x}/requirements-3.13.txt"
    )
    assert f"pip install {lock}" in found["gfx942"]
    assert f"pip download --dest jax-wheels {lock}" in found["gfx942"]
    assert "rocm/dev-ubuntu-24.04:7.0.3-complete" in found["gfx942"]


@pytest.mark.parametrize(
    ("tier", "answer"),
    [(STRUCTURE, "has code"), (COMPILED, "compiled only"), (DEVICE, "tested on a GPU"), ("x", "not tested")],
)
def test_gpu_is_answered_at_a_glance(tier: str, answer: str) -> None:
    """The line that opens a GPU has the answer; only tests on a GPU count as tested."""
    page = index_page(1, ("gfx942",), changes={1: {"tiers": {"gfx942": tier}}})
    line = sections(page)["gfx942"].partition("\n\n")[0]
    assert answer in line
    assert ("no GPU ran it" in line) == (answer != "tested on a GPU")
    assert "since JAX 0.10.2" in line


def test_gpu_names_first_release_and_last_test_on_a_gpu() -> None:
    """Yanked sets count for neither."""
    changes = {
        1: {"jax_version": "0.8.0", "python_versions": ("3.11",), "tiers": {"gfx942": DEVICE}},
        2: {"jax_version": "0.9.1", "python_versions": ("3.11",), "tiers": {"gfx942": DEVICE}},
        3: {"jax_version": "0.10.0", "rocm_version": "7.2.0", "tiers": {"gfx942": COMPILED, "gfx950": DEVICE}},
        4: {"jax_version": "0.9.2", "rocm_version": "7.2.0", "tiers": {"gfx942": COMPILED}},
    }
    page = index_page(4, changes=changes, yanked={1: "wrong results"})
    found = sections(page)
    assert "since JAX 0.9.1" in found["gfx942"]
    assert "passed tests on a GPU of this target is set 2 (JAX 0.9.1, ROCm 7.0.2)" in found["gfx942"]
    assert "since JAX 0.10.0" in found["gfx950"]
    assert "newest set that" not in found["gfx950"]
    assert [(row[0], *row[2:5], *row[6:]) for row in tables(page)["Targets by JAX release"]] == [
        ("gfx942", "0.9.1", "0.9.2", "7.2.0", COMPILED, "JAX 0.9.1 (set 2)"),
        ("gfx950", "0.10.0", "0.10.0", "7.2.0", DEVICE, "JAX 0.10.0 (set 3)"),
    ]
    assert tables(page)["Wheels, Python and ROCm by JAX release"] == [
        ["Wheel jax-rocm7-plugin", "0.9.1", "0.10.0"],
        ["Python 3.11", "0.9.1", "0.10.0"],
        ["Python 3.12", "0.9.2", "0.10.0"],
        ["Python 3.13", "0.9.2", "0.10.0"],
        ["ROCm 7.0.2", "0.9.1", "0.9.1"],
        ["ROCm 7.2.0", "0.9.2", "0.10.0"],
    ]


def test_table_of_sets_says_which_sets_no_gpu_ran() -> None:
    changes = {1: {"tiers": {"gfx942": COMPILED, "gfx950": DEVICE}}, 2: {"tiers": {"gfx942": COMPILED}}}
    page = index_page(2, changes=changes)
    assert [row[-1] for row in tables(page)["JAX, ROCm, Python and targets"]] == [
        "compiled: gfx942. No GPU ran this set.",
        "device: gfx950. compiled: gfx942. ",
    ]


def test_first_release_is_a_bound_if_the_page_omits_sets() -> None:
    assert "or earlier" not in Elements(index_page(MAX_ROWS, ("gfx942",))).text
    assert "since JAX 0.10.2 or earlier" in sections(index_page(MAX_ROWS + 1, ("gfx942",)))["gfx942"]


@pytest.mark.parametrize(
    ("rocm", "tag"),
    [
        ("7.0.0", "7.0-complete"), ("7.2.1", "7.2.1-complete"), ("7.9.0", ""), ("7.13.0", ""),
        ("7.14.0", "7.14.0-full"), ("7.14.1", "7.14.1-full"), ("10.0.0", "10.0.0-full"), ("7.2", ""), (HOSTILE, ""),
    ],
)  # fmt: skip
def test_docker_command_names_an_image_that_exists(rocm: str, tag: str) -> None:
    assert amd_image_tag(rocm) == tag
    text = sections(index_page(1, ("gfx942",), changes={1: {"rocm_version": rocm}}))["gfx942"]
    assert ("docker run" in text) == bool(tag)
    assert ("AMD has no image" in text) == (not tag)


def test_commands_are_not_shown_where_they_fail() -> None:
    """Without a lock file, neither hashes nor a bundle exist; AMD's image has one Python."""
    files = dict.fromkeys(("wheels.json", "SHA256SUMS", "requirements-$(id).txt"), "0" * 64)
    page = index_page(1, ("gfx942",), changes={1: {"files": files, "python_versions": ("3.11",)}})
    text = sections(page)["gfx942"]
    assert re.findall(r"^(?:uv )?pip \w+ (--\S+)", text, re.MULTILINE) == ["--extra-index-url"] * 2
    assert "This set has no pylock.toml" in text
    assert "AMD has no image" in text
    assert "ci_build bundle" not in Elements(page).text
    assert f"ci_build bundle multi-arch/{1:064x}" in Elements(index_page(1)).text


def test_hostile_version_stays_one_word_of_a_command() -> None:
    """Users paste commands into a shell."""
    text = sections(index_page(1, ("gfx942",), changes={1: {"jax_version": "1;$(id)'\"\n"}}))["gfx942"]
    line = next(line for line in text.splitlines() if line.startswith("pip install"))
    assert shlex.split(line)[-1] == "jax==1;$(id)'\""
    assert "docker run" not in text


def test_yanked_and_quarantined_sets_have_reasons_and_no_command() -> None:
    page = index_page(3, ("gfx942",), yanked={3: "wrong results"}, quarantined={2: "a CVE"})
    text = Elements(page).text
    assert "Yanked: wrong results" in text
    assert "a CVE" in text
    assert "==0.10.2+rocm7.1" in sections(page)["gfx942"]
    for number in (2, 3):
        assert f"==0.10.2+rocm7.{number}" not in text
    nothing = index_page(1, ("gfx942",), yanked={1: "wrong results"})
    assert "pip install" not in nothing.decode()
    assert "Nothing is offered." in nothing.decode()


def test_index_without_plots_is_small_and_equal_values_give_equal_bytes() -> None:
    page = index_page(80)
    without = re.sub(rb"<!-- plots -->.*<!-- end of plots -->", b"", page, flags=re.DOTALL)
    assert 10_000 < len(without) < 300_000
    assert len(page) < 600_000
    assert index_page(80) == page
    assert len(set_page()) < 300_000
    assert len(sections(page)) == len(web_pages.TARGETS)


def test_report_with_many_failures_is_small_and_counts_all_of_them() -> None:
    checked = web_pages.failing_evidence()
    results = [replace(one, message="E" * 3999 + "<") for one in checked.results for _ in range(30)]
    findings = [replace(one, message="m" * 200) for one in checked.evidence.findings for _ in range(20)]
    checks = [replace(one, name=f"{number}") for one in checked.checks for number in range(30)]
    more = {
        f"{gate}/{target}.json": EvidenceChecks(
            evidence=replace(checked.evidence, gate=gate, target=target, findings=tuple(findings)),
            checks=tuple(checks),
            results=tuple(results) if gate == "device" else (),
        )
        for gate in ("inspection", "install", "load", "compile", "coverage", "device")
        for target in web_pages.TARGETS
    }
    page = set_page(more=more)
    count = len(web_pages.TARGETS) * 30 + 1
    text = Elements(page).text
    assert f"{count} tests failed on GPUs; the first 200 are listed." in text
    assert f"{count} tests failed first, then passed in a fresh process; the first 200 are listed." in text
    assert f"{len(more) * 20 + 1} findings; the first 200 are listed." in text
    assert text.count("EEE…") == 2 * 199  # and one of each kind with a short message
    assert len(page) < 300_000


def test_report_does_not_claim_results_that_it_cannot_read() -> None:
    checked = web_pages.failing_evidence()
    named = {"checks": [{"files": {RESULTS: {"name": "results"}}}]}
    lost = replace(checked, evidence=replace(checked.evidence, details=named), results=())
    machine = {"x.json": replace(checked, results=(replace(checked.results[0], verdict=TestVerdict.ENVIRONMENT),))}
    assert "1 test had no result" in Elements(set_page(more=machine)).text
    assert "no result" not in Elements(set_page()).text
    alone = Elements(set_page(more={"device.json": lost})).text
    assert "The test results of device.json cannot be read" in alone
    assert "No test" not in alone


def test_report_lists_failing_tests_before_gates_and_failed_gates_first() -> None:
    text = Elements(set_page()).text
    places = [text.index(word) for word in ("test_bad", "test_shaky", "upstream issue", "test-failed", "Evidence that")]
    assert places == sorted(places)
    table = text[text.index("Evidence that counted") :]
    assert table.index("device") < table.index("compile")
    assert "test_good" not in text


def test_bars_are_stacked_to_the_highest_sum() -> None:
    chart = stacked_bars("T", "N", [("1", {"a": 3, "b": 1}), ("2", {"a": 2})], ("a", "b"), str)
    heights = [(mark.text, mark.height) for mark in chart.marks]
    assert heights == [("set 1, a: 3", 120.0), ("set 1, b: 1", 40.0), ("set 2, a: 2", 80.0)]
    assert [mark.y + mark.height for mark in chart.marks] == [168.0, 48.0, 168.0]
    assert chart.table == (("1", "3", "1"), ("2", "2", "–"))


def test_bars_without_a_colour_are_drawn_as_one_and_listed_in_the_table() -> None:
    series = [f"gfx{number}" for number in range(10)]
    values = {name: float(number) for number, name in enumerate(series)}
    chart = stacked_bars("T", "N", [("1", values), ("2", {"gfx0": 5.0})], series, str)
    assert [name for name, _ in chart.key] == ["gfx0", *series[4:], "3 others"]
    assert len({style for _, style in chart.key}) == 8
    assert [mark.text for mark in chart.marks if "others" in mark.text] == ["set 1, 3 others: 6.0"]
    assert chart.columns == ("Set", *series)
    assert chart.table[0] == ("1", *map(str, values.values()))


def test_plots_show_sizes_tiers_tests_and_gate_times_of_each_set() -> None:
    page = index_page(3, ("gfx942", "gfx1100"))
    numbers = {label.removeprefix("Numbers of "): rows for label, rows in tables(page).items() if "Numbers" in label}
    assert numbers == {
        "Wheel size by target": [["1", "31 MB", "32 MB"], ["2", "32 MB", "33 MB"], ["3", "33 MB", "34 MB"]],
        "Tier by target": [["1", STRUCTURE, COMPILED], ["2", STRUCTURE, COMPILED], ["3", STRUCTURE, COMPILED]],
        "Tests that passed on GPUs": [["1", "21013"], ["2", "21026"], ["3", "21039"]],
        "Tests that failed on GPUs": [["1", "40", "25"], ["2", "80", "50"], ["3", "120", "75"]],
        "Gate times": [
            ["1", "421 s", "61 s", "48 min", "13 s", "96 s", "32 s"],
            ["2", "422 s", "62 s", "48 min", "14 s", "97 s", "33 s"],
            ["3", "423 s", "63 s", "48 min", "15 s", "98 s", "34 s"],
        ],
    }
    assert {b's-failed"', b's-flaky"', b's-passed"'} <= {*re.findall(rb's-\w+"', page)}


@pytest.fixture
def promoted(bucket: DirBucket, tmp_path: Path) -> DirBucket:
    """Return a bucket with two promoted sets."""
    for minor in (2, 3):
        wheels = make_wheels(tmp_path / str(minor), version=f"0.10.2+rocm7.{minor}.0", pythons=("3.12",))
        go(bucket, staged_in(bucket, tmp_path / "sets", wheels, rocm_version=f"7.{minor}.0"))
    return bucket


def overview(bucket: Bucket) -> str:
    return bucket.get(RELEASED.overview).decode()


def test_promotion_writes_report_and_numbers_that_the_ledger_names(promoted: DirBucket) -> None:
    links = [link for link in Elements(promoted.get(RELEASED.overview)).values("href") if link.startswith("sets/")]
    keys = {RELEASED.root + link for link in links}
    assert all(promoted.head(key) for key in keys)
    (report, _) = sorted({key for key in keys if "/report-" in key})
    (numbers,) = (key for key in keys if "/summary-" in key)
    summary = load_summary(promoted.get(numbers), numbers)
    assert set(summary.gates) >= {"compile", "inspection"}
    assert {target for targets in summary.wheels.values() for target in targets} == {"gfx942", "gfx950"}
    assert "No test ran on a GPU" in promoted.get(report).decode()
    assert [*verify(promoted, RELEASED)] == []
    promoted.path(report).unlink()  # it is read-only
    promoted.path(report).write_bytes(b"defaced")
    assert any(report in problem for problem in verify(promoted, RELEASED))


def test_page_after_updates_is_that_of_the_ledger(promoted: DirBucket) -> None:
    for kind, reason in ((EntryKind.YANK, "wrong results"), (EntryKind.QUARANTINE, "a CVE")):
        mark(promoted, RELEASED, kind, ["2"], reason=reason, actor="me", now=lambda: NOW)
    page = overview(promoted)
    assert "a CVE" in Elements(page.encode()).text
    assert "rocm7.3.0" not in "".join(sections(page.encode()).values())
    assert publish(promoted, RELEASED, everything=True) == ()
    assert [*verify(promoted, RELEASED)] == []


def test_rows_of_status_json_are_not_trusted_by_verify(promoted: DirBucket) -> None:
    path = promoted.path(RELEASED.status)
    body = json.loads(path.read_text())
    body["history"][0]["reason"] = "forged"
    path.write_text(json.dumps(body))
    assert any("contradicts the ledger" in problem for problem in verify(promoted, RELEASED))
    publish(promoted, RELEASED, everything=True)
    assert [*verify(promoted, RELEASED)] == []


def test_status_of_older_version_gets_the_new_rows(promoted: DirBucket) -> None:
    page, path = overview(promoted), promoted.path(RELEASED.status)
    body: dict[str, Any] = json.loads(path.read_text())
    for name in ("history", "hidden", "listed"):
        del body[name]
    for row in body["sets"]:
        del row["files"], row["figures"], row["quarantined"]
    path.write_text(json.dumps(body))
    assert [*verify(promoted, RELEASED)] == []
    mark(promoted, RELEASED, EntryKind.PIN, ["2"], reason="kept", actor="me", now=lambda: NOW)
    assert "report of set 1" in overview(promoted)
    assert len(json.loads(path.read_text())["history"]) == 3
    assert page != overview(promoted)
    assert [*verify(promoted, RELEASED)] == []


FORM = f'<meta name="generator" content="ci_build, pages {PAGES_VERSION}">\n'
FORGED = ("pip install --extra-index-url ", "pip install --extra-index-url https://x.invalid/ ")


def write_page(bucket: DirBucket, key: str, *changes: tuple[str, str], recorded: bool = True) -> None:
    """Change a page; `recorded` writes its etag to status.json, as its publisher does."""
    path, text = bucket.path(key), bucket.get(key).decode()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    status = bucket.path(RELEASED.status)
    body = json.loads(status.read_text())
    if recorded and key == RELEASED.overview:
        info = bucket.head(key)
        assert info is not None
        status.write_text(json.dumps({**body, "people": info.etag}))


@pytest.mark.parametrize("form", ["", FORM.replace(f"pages {PAGES_VERSION}", f"pages {PAGES_VERSION + 1}")])
@pytest.mark.parametrize("key", [RELEASED.overview, LISTING])
def test_verify_names_pages_of_another_version_and_command(promoted: DirBucket, key: str, form: str) -> None:
    write_page(promoted, key, (FORM, form), ("<main", '<main class="older"'))
    (problem,) = verify(promoted, RELEASED)
    assert problem.startswith(
        f"{key} was written by another version of ci_build (form {PAGES_VERSION + 1 if form else 0} "
    )
    assert "`ci_build index publish multi-arch --everything` rewrites it." in problem
    assert key in publish(promoted, RELEASED, everything=True)
    assert [*verify(promoted, RELEASED)] == []


@pytest.mark.parametrize("changes", [(FORGED,), (FORGED, (FORM, ""))])
def test_verify_reports_forged_install_line(promoted: DirBucket, changes: tuple[tuple[str, str], ...]) -> None:
    """A page that was changed after its publication is forged, even if it names another version."""
    write_page(promoted, RELEASED.overview, *changes, recorded=False)
    (problem,) = verify(promoted, RELEASED)
    assert problem.startswith(f"{RELEASED.overview} has sha256 ")
    assert pages_changed(promoted, RELEASED)
    assert cli.run(["verify", "multi-arch", "--bucket", str(promoted.root)]) == BucketError.exit_code


def test_verify_reports_forged_page_of_this_version_with_forged_record(promoted: DirBucket) -> None:
    write_page(promoted, RELEASED.overview, FORGED)
    (problem,) = verify(promoted, RELEASED)
    assert problem.startswith(f"{RELEASED.overview} has sha256 ")


def test_change_of_page_bytes_has_a_new_number() -> None:
    """`verify` tells pages of other versions from forged ones by their number."""
    targets = ("gfx942", "gfx1100")
    pages = (index_page(2, targets), index_page(1, targets, yanked={1: "x"}), listing_page([ROW]))
    digest = hashlib.sha256(b"".join(pages)).hexdigest()
    reason = f"Pages differ: increase PAGES_VERSION in promotion/website/render.py, and record {digest} here."
    assert (PAGES_VERSION, digest) == (1, "07979c3caaeee02e7fb72c834014fa29894e57f4aec29ef689a3e18fb668154d"), reason


def test_requests_of_an_update_do_not_grow_with_sets(bucket: DirBucket, tmp_path: Path) -> None:
    requests = []
    for minor in range(2, 7):
        wheels = make_wheels(tmp_path / str(minor), version=f"0.10.2+rocm7.{minor}.0", pythons=("3.12",))
        entry = go(bucket, staged_in(bucket, tmp_path / "sets", wheels, rocm_version=f"7.{minor}.0")).entry
        assert len(json.loads(bucket.get(RELEASED.status))["sets"]) == minor - 1
        counting, traffic = counted(bucket)
        mark(counting, RELEASED, EntryKind.PIN, [str(entry.number)], reason="kept", actor="me", now=lambda: NOW)
        requests.append(traffic.requests)
    assert len({*requests}) == 1


def test_hash_locked_requirements_come_from_the_lock(bucket: DirBucket, tmp_path: Path) -> None:
    wheels = make_wheels(tmp_path / "wheels", pythons=("3.12",))
    lock = (
        'lock-version = "1.0"\ncreated-by = "tests"\n[[packages]]\nname = "jax"\nversion = "0.10.2"\n'
        f'[[packages.wheels]]\nname = "jax-0.10.2-py3-none-any.whl"\nurl = "https://x.invalid/jax.whl"\n'
        f'hashes = {{sha256 = "{"e" * 64}"}}\n'
    )
    staged = staged_in(bucket, tmp_path, wheels, lock=lock)
    go(bucket, staged)
    lines = bucket.get(RELEASED.set_file(staged.digest, "requirements-3.12.txt")).decode().splitlines()
    assert f"jax==0.10.2 --hash=sha256:{'e' * 64}" in lines
    assert {line.partition("=")[0] for line in lines} == {"jax", *(one.wheel.name for one in wheels)}
    assert all("--hash=sha256:" in line for line in lines)


ROW: ListedIndex = {"index": "gfx94X-dcgpu", "channel": "nightly", "targets": ["gfx942"]}


def test_list_of_indexes_keeps_other_rows_and_is_written_once(promoted: DirBucket) -> None:
    first = promoted.get(LISTING)
    (own,) = parse_listing(first) or ()
    assert own == {"index": "multi-arch", "channel": POLICY.channel, "targets": ["gfx942", "gfx950"]}
    assert update_listing(promoted, ROW) == (LISTING,)
    assert update_listing(promoted, ROW) == ()
    assert parse_listing(promoted.get(LISTING)) == (ROW, own)
    assert update_listing(promoted, own) == ()
    assert [*verify(promoted, RELEASED)] == []


@pytest.mark.parametrize("damage", [b"", b"<html>", b"appended", None])
def test_damaged_list_of_indexes_is_found_and_restored(promoted: DirBucket, damage: bytes | None) -> None:
    path, before = promoted.path(LISTING), promoted.get(LISTING)
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(before + damage if damage == b"appended" else damage)
    assert pages_changed(promoted, RELEASED)
    (problem,) = verify(promoted, RELEASED)
    assert problem.startswith(f"{LISTING} does not list multi-arch as its ledger describes it")
    assert publish(promoted, RELEASED, everything=True) == (LISTING,)
    assert promoted.get(LISTING) == before
    assert not pages_changed(promoted, RELEASED)


def test_list_of_indexes_survives_a_race(promoted: DirBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another index is added between reading and writing."""
    write, raced = promoted.put_if_match, list[str]()

    def put(key: str, data: bytes, *, etag: str | None) -> Any:
        if not raced:
            raced.append(key)
            update_listing(promoted, {**ROW, "index": "other"})
        return write(key, data, etag=etag)

    monkeypatch.setattr(promoted, "put_if_match", put)
    update_listing(promoted, ROW)
    assert [row["index"] for row in parse_listing(promoted.get(LISTING)) or ()] == [
        "gfx94X-dcgpu",
        "multi-arch",
        "other",
    ]


def test_forged_list_of_indexes_is_not_believed() -> None:
    page = listing_page([ROW])
    assert parse_listing(page) == (ROW,)
    assert parse_listing(page.replace(b"gfx942", b"gfx950", 1)) is None
    for row in ({**ROW, "index": "../x"}, {**ROW, "targets": "gfx942"}, {"index": "x"}):
        data = json.dumps([row]).encode()
        assert parse_listing(b'<script type="application/json" id="indexes">' + data + b"</script>") is None


def test_damaged_summary_is_an_error(promoted: DirBucket) -> None:
    for text in ("{}", "[]", '{"schema": 2}', '{"schema": 1, "wheels": 3, "gates": {}, "modules": []}'):
        with pytest.raises(BucketError, match=r"^x cannot be read"):
            load_summary(text.encode(), "x")
    assert lists_index(promoted, (parse_listing(promoted.get(LISTING)) or ())[0])
