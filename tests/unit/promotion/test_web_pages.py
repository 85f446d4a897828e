"""Pages for people: complete, escaped, small and reproducible."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from promotion.compatibility.module_support import EvidenceChecks
from promotion.evidence.test_results import TestResult, TestVerdict
from promotion.gates.device.device_evidence import RESULTS
from promotion.index.install_commands import amd_image_tag
from promotion.website.render import visible
from tests.support import web_pages
from tests.support.sets import ledger_wheel, rocm_packages
from tests.support.web_pages import (
    HOSTILE,
    Elements,
    index_page,
    sections,
    set_page,
)

PAGES: Mapping[str, Callable[[], bytes]] = {
    "index": index_page,
    "hostile index": web_pages.hostile_index_page,
    "set": set_page,
    "hostile set": functools.partial(set_page, HOSTILE),
}


@pytest.mark.parametrize("kind", PAGES)
def test_page_permits_only_its_own_script_and_style(kind: str) -> None:
    found = Elements(PAGES[kind]())
    (policy,) = (
        one["content"]
        for tag, one in found.tags
        if one.get("http-equiv") == "Content-Security-Policy"
    )
    names = [tag for tag, _ in found.tags]
    data = [
        one
        for tag, one in found.tags
        if tag == "script" and one.get("type") == "application/json"
    ]
    code = found.texts["script"][len(data) :]
    assert (len(code), len(found.texts["style"]), names.count("script")) == (
        1,
        1,
        1 + len(data),
    )
    for directive, text in (
        ("script-src", code[0]),
        ("style-src", found.texts["style"][0]),
    ):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    attributes: set[str] = set()
    for _, one in found.tags:
        attributes.update(one)
    assert not [
        name for name in attributes if name.startswith("on") or name in ("style", "src")
    ]
    assert {"img", "iframe", "link", "object"}.isdisjoint(names)
    foreign = {
        link for link in found.values("href") if re.match(r"(?i)[a-z]+:|//", link)
    }
    assert foreign <= {"https://rocm.docs.amd.com/projects/install-on-linux/en/latest/"}
    assert not re.search("[\u202a-\u202e\u2066-\u2069]", PAGES[kind]().decode())


def test_hostile_text_is_shown_as_text() -> None:
    """Each place shows the text itself, so nothing was dropped either."""
    assert (
        Elements(web_pages.hostile_index_page()).text.count(str(visible(HOSTILE))) > 20
    )
    assert Elements(set_page(HOSTILE)).text.count(str(visible(HOSTILE))) > 15


def test_gpus_are_grouped_by_product_newest_first() -> None:
    page = index_page(1, ("gfx942", "gfx950", "gfx1030", "gfx1103", "gfx1151"))
    found = re.findall(
        r'<div class="group">\n<h3>(\w+)|class="panel" id="(\w+)"', page.decode()
    )
    assert ["".join(one) for one in found] == [
        *("Instinct", "gfx950", "gfx942"),
        *("Radeon", "gfx1030"),
        *("Ryzen", "gfx1151", "gfx1103"),
    ]


def test_gpu_has_its_state_and_commands_of_its_newest_set() -> None:
    tested = dict.fromkeys(("gfx950", "gfx1100"), "2026-02-03: 7 tests passed")
    changes = {3: {"policy": {"tested": tested}}}
    found = sections(index_page(3, ("gfx942", "gfx950", "gfx1100"), changes=changes))
    assert "Instinct MI300A, MI300X, MI325X" in found["gfx942"]
    assert "Compiled only: nobody ran it" in found["gfx950"]
    assert "nobody compiled a program for it" in found["gfx942"]
    assert "Tested on a GPU on 2026-02-03: 7 tests passed." in found["gfx1100"]
    assert "ROCm 7.0.3 must be installed first" in found["gfx942"]
    assert "python -m jax_plugins.xla_rocm7" in found["gfx942"]
    simple = "URL-of-this-page/simple/"
    assert (
        f"pip install --extra-index-url {simple} jax-rocm7-plugin==0.10.2+rocm7.3"
        in found["gfx942"]
    )
    assert (
        f"uv pip install --extra-index-url {simple} jax-rocm7-plugin==0.10.2+rocm7.3"
        in found["gfx942"]
    )
    lock = (
        f"--require-hashes --no-deps --extra-index-url {simple} -r"
        f" URL-of-this-page/sets/{3:064x}/requirements-locked.txt"
    )
    assert f"pip install {lock}" in found["gfx942"]
    assert "rocm/dev-ubuntu-24.04:7.0.3-complete" in found["gfx942"]


def test_gpu_has_its_failing_programs() -> None:
    failing = {"gfx942": "5 of 24 programs fail: a.x, b.y"}
    changes = {1: {"policy": {"failing": failing}}}
    page = index_page(1, ("gfx942", "gfx950"), changes=changes)
    found = sections(page)
    evidence = re.findall('<th scope="row"><a href="#([^"]+)', page.decode())
    assert evidence == ["gfx942", "gfx950"], "failures first"
    assert "Known failures: 5 of 24 programs fail: a.x, b.y." in found["gfx942"]
    assert "programs fail" not in found["gfx950"]


EXTRA_NEEDS = tuple(
    f'rocm-sdk-{part}==7.14.0; extra == "device-gfx942"'
    for part in ("core", "libraries", "device-gfx942")
)


def page_with_extras(**changes: Any) -> str:
    """Return the commands for gfx942 of a set whose wheels have an extra for its ROCm."""
    version = "0.10.2+rocm7.1"
    plugin = ledger_wheel("jax-rocm7-plugin", version, requires_dist=EXTRA_NEEDS)
    of_set = {"wheels": (plugin,), "rocm_version": "7.14.0", **changes}
    return sections(index_page(1, ("gfx942",), changes={1: of_set}))["gfx942"]


def test_commands_install_the_rocm_that_the_index_lists() -> None:
    files = ("requirements-locked.txt", "requirements-device-gfx942.txt")
    text = page_with_extras(
        rocm_packages=rocm_packages(), files=dict.fromkeys(files, "0" * 64)
    )
    extra = "'jax-rocm7-plugin[device-gfx942]==0.10.2+rocm7.1' jax==0.10.2"
    simple = "--extra-index-url URL-of-this-page/simple/"
    assert f"\npip install {simple} {extra}" in text
    assert f"\nuv pip install {simple} {extra}" in text
    assert "ROCm 7.14.0 is included: device-gfx942 installs it" in text
    place = f"URL-of-this-page/sets/{1:064x}/requirements-"
    assert f"-r {place}locked.txt -r {place}device-gfx942.txt" in text
    assert f"--no-index --find-links jax-wheels {extra}" in text
    assert "pip install --extra-index-url URL-of-this-page/simple/ jax-rocm7" in text, (
        "AMD's image has ROCm"
    )


def test_commands_add_the_index_of_amd_for_a_rocm_without_digests() -> None:
    text = page_with_extras(files={"requirements-locked.txt": "0" * 64})
    amd = "--extra-index-url https://repo.amd.com/rocm/whl-multi-arch/ 'jax"
    assert f"\npip install --extra-index-url URL-of-this-page/simple/ {amd}" in text
    assert "\nuv pip install --index-strategy unsafe-best-match --extra-index" in text
    assert "from AMD’s server, pinned by version only." in text
    assert "ROCm is not included." in text
    assert "--find-links jax-wheels jax-rocm7-plugin==" in text


@pytest.mark.parametrize(
    ("rocm", "tag"),
    [
        ("7.14.1", "7.14.1-full"),
        ("7.12.0", ""),
        (HOSTILE, ""),
    ],
)
def test_docker_command_names_an_image_that_exists(rocm: str, tag: str) -> None:
    assert amd_image_tag(rocm) == tag
    text = sections(index_page(1, ("gfx942",), changes={1: {"rocm_version": rocm}}))[
        "gfx942"
    ]
    assert ("docker run" in text) == bool(tag)
    assert ("AMD has no image" in text) == (not tag)


def test_commands_are_not_shown_where_they_fail() -> None:
    """Without a lock file, neither hashes nor a bundle exist; AMD's image has one Python."""
    files = dict.fromkeys(
        ("wheels.json", "SHA256SUMS", "requirements-$(id).txt"), "0" * 64
    )
    page = index_page(
        1, ("gfx942",), changes={1: {"files": files, "python_versions": ("3.11",)}}
    )
    text = sections(page)["gfx942"]
    assert (
        re.findall(r"^(?:uv )?pip \w+ (--\S+)", text, re.MULTILINE)
        == ["--extra-index-url"] * 2
    )
    assert "This set has no pylock.toml" in text
    assert "ci_build set bundle" not in Elements(page).text
    assert f"ci_build set bundle multi-arch/{1:064x}" in Elements(index_page(1)).text


def test_hostile_version_stays_one_word_of_a_command() -> None:
    """Users paste commands into a shell."""
    text = sections(
        index_page(1, ("gfx942",), changes={1: {"jax_version": "1;$(id)'\"\n"}})
    )["gfx942"]
    line = next(line for line in text.splitlines() if line.startswith("pip install"))
    assert shlex.split(line)[-1] == "jax==1;$(id)'\""
    assert "docker run" not in text


def test_yanked_and_quarantined_sets_have_reasons_and_no_command() -> None:
    page = index_page(
        3, ("gfx942",), yanked={3: "wrong results"}, quarantined={2: "a CVE"}
    )
    text = Elements(page).text
    assert "Yanked: wrong results" in text
    assert "a CVE" in text
    assert "==0.10.2+rocm7.1" in sections(page)["gfx942"]
    for number in (2, 3):
        assert f"==0.10.2+rocm7.{number}" not in text
    nothing = index_page(1, ("gfx942",), yanked={1: "wrong results"})
    assert "pip install" not in nothing.decode()
    assert "Nothing is offered." in nothing.decode()


def test_report_with_many_failures_is_small_and_counts_all_of_them() -> None:
    checked = web_pages.failing_evidence()
    results: list[TestResult] = []
    for one in checked.results:
        results.extend(replace(one, message="E" * 3999 + "<") for _ in range(30))
    findings = [
        replace(one, message="m" * 200)
        for one, _ in product(checked.evidence.findings, range(20))
    ]
    checks = [
        replace(one, name=f"{number}")
        for one, number in product(checked.checks, range(30))
    ]
    more = {}
    for gate in ("inspection", "install", "load", "compile", "coverage", "device"):
        for target in web_pages.TARGETS:
            more[f"{gate}/{target}.json"] = EvidenceChecks(
                evidence=replace(
                    checked.evidence, gate=gate, target=target, findings=tuple(findings)
                ),
                checks=tuple(checks),
                results=tuple(results) if gate == "device" else (),
            )
    page = set_page(more=more)
    count = len(web_pages.TARGETS) * 30 + 1
    text = Elements(page).text
    assert f"{count} tests failed on GPUs; the first 200 are listed." in text
    assert (
        f"{count} tests failed first, then passed in a fresh process; the first 200 are"
        " listed." in text
    )
    assert f"{len(more) * 20 + 1} findings; the first 200 are listed." in text
    assert text.count("EEE…") == 2 * 199  # and one of each kind with a short message
    assert len(page) < 300_000


def test_report_does_not_claim_results_that_it_cannot_read() -> None:
    checked = web_pages.failing_evidence()
    named = {"checks": [{"files": {RESULTS: {"name": "results"}}}]}
    lost = replace(
        checked, evidence=replace(checked.evidence, details=named), results=()
    )
    machine = {
        "x.json": replace(
            checked,
            results=(replace(checked.results[0], verdict=TestVerdict.ENVIRONMENT),),
        )
    }
    assert "1 test had no result" in Elements(set_page(more=machine)).text
    assert "no result" not in Elements(set_page()).text
    alone = Elements(set_page(more={"device.json": lost})).text
    assert "The test results of device.json cannot be read" in alone
    assert "No test" not in alone
