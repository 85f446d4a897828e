"""Compatibility tables contain exactly the results in the evidence."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from core.errors import RequestError
from core.model import Outcome, Tier
from promotion.compatibility.compat_render import sheets, to_markdown, to_rst
from promotion.compatibility.promoted_results import CheckOutcome, EvidenceChecks
from promotion.compatibility.tables import (
    COMPAT_FILE,
    DocumentedLibrary,
    JaxModule,
    ModuleRow,
    Tables,
    load_spec,
    make_tables,
    module_support,
)
from promotion.index.ledger import LedgerEntry
from tests.support import sets

NUMPY = JaxModule(
    name="jax.numpy",
    description="Arrays | of *numbers*",
    checks=("numpy.*", "test_numpy.py"),
)
SPARSE = JaxModule(
    name="jax.experimental.sparse", description="Sparse", checks=("sparse.*",)
)
SPEC = (
    (NUMPY, SPARSE),
    (
        DocumentedLibrary(
            name="hipBLAS", soname="libhipblas.so", purpose="algebra", used_in="matmul"
        ),
    ),
)


def check(name: str, outcome: str = "passed", reason: str = "") -> dict[str, str]:
    return {"name": name, "outcome": outcome, "reason": reason}


def evidence(
    *checks: Mapping[str, str],
    gate: str = "compile",
    target: str = "gfx942",
    outcome: Outcome = Outcome.PASSED,
) -> EvidenceChecks:
    tier = Tier.DEVICE if gate == "device" else Tier.COMPILED
    told = sets.evidence(gate=gate, target=target, tier=tier, outcome=outcome)
    return EvidenceChecks(
        evidence=told, checks=tuple(CheckOutcome(**body) for body in checks)
    )


def entry(number: int, jax: str, rocm: str = "7.2.0") -> LedgerEntry:
    promoted = sets.promoted_set(
        set_digest=f"{number:064x}", rocm_version=rocm, jax_version=jax
    )
    return sets.promotion_entry(number, promoted)


def tables(
    *told: tuple[LedgerEntry, Mapping[str, EvidenceChecks]], **more: Any
) -> Tables:
    return make_tables("multi-arch", told, offered=[1], spec=SPEC, **more)


def row(made: Tables, name: str) -> ModuleRow:
    return next(item for item in made.modules if item.module.name == name)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("schema = 1", "schema = 2"),
        ('soname = "libhipfft.so"\n', ""),
    ],
)
def test_load_spec_refuses_invalid_file(tmp_path: Path, old: str, new: str) -> None:
    file = tmp_path / "compat.toml"
    file.write_text(COMPAT_FILE.read_text().replace(old, new, 1))
    assert tomllib.loads(file.read_text())
    with pytest.raises(RequestError, match="is invalid"):
        load_spec(file)


def test_module_support_uses_strongest_gate() -> None:
    told = {
        "c942": evidence(check("numpy.a"), check("numpy.b")),
        "d942": evidence(check("test_numpy.py"), gate="device"),
        "c950": evidence(check("numpy.a"), target="gfx950"),
    }
    found = {
        word.target: (word.gate, word.tier, word.checks, word.evidence)
        for word in module_support(NUMPY, told)
    }
    assert found == {
        "gfx942": ("device", Tier.DEVICE, 1, "d942"),
        "gfx950": ("compile", Tier.COMPILED, 1, "c950"),
    }
    assert module_support(SPARSE, told) == ()


def test_module_support_prefers_failure_of_stronger_gate() -> None:
    told = {
        "c": evidence(check("numpy.a")),
        "d": evidence(
            check("test_numpy.py", "failed"), gate="device", outcome=Outcome.FAILED
        ),
    }
    (word,) = module_support(NUMPY, told)
    assert (word.gate, word.tier, word.unsupported) == (
        "device",
        None,
        (("test_numpy.py", ""),),
    )


@pytest.mark.parametrize(
    ("checks", "outcome", "works"),
    [
        (
            [check("numpy.a"), check("numpy.b", "known", "no such instruction")],
            Outcome.PASSED,
            True,
        ),
        ([check("numpy.a", "known", "no such instruction")], Outcome.PASSED, False),
        ([check("numpy.a")], Outcome.FAILED, False),
    ],
)
def test_module_support_requires_passed_checks(
    checks: list[dict[str, str]], outcome: Outcome, works: bool
) -> None:
    (word,) = module_support(NUMPY, {"c": evidence(*checks, outcome=outcome)})
    assert (word.tier is not None) is works
    assert len(word.unsupported) == sum(item["outcome"] != "passed" for item in checks)


GOOD = {"c": evidence(check("numpy.a"))}
BAD = {"c": evidence(check("numpy.a", "failed"), outcome=Outcome.FAILED)}


@pytest.mark.parametrize(
    ("history", "since"),
    [
        ([(entry(1, "0.9.1"), GOOD), (entry(2, "0.10.2"), BAD)], ("", "")),
        (
            [
                (entry(1, "0.9.1"), GOOD),
                (entry(2, "0.10.0"), BAD),
                (entry(3, "0.10.2"), GOOD),
            ],
            ("0.10.2", "7.2.0"),
        ),
        (
            [(entry(1, "0.10.2", "7.10.0"), GOOD), (entry(2, "0.9.1", "7.2.0"), GOOD)],
            ("0.9.1", "7.2.0"),
        ),
    ],
)
def test_make_tables_finds_first_supported_versions(
    history: list[Any], since: tuple[str, str]
) -> None:
    found = row(tables(*history), "jax.numpy")
    assert (found.since_jax, found.since_rocm) == since


def test_sheets_link_evidence_and_escape_text() -> None:
    known = evidence(check("numpy.a"), check("numpy.b", "known", "needs `mfma` | no"))
    made = tables((entry(1, "0.10.2"), {"v2/x/compile/gfx942/1.json": known}))
    markdown = to_markdown("T", sheets(made, base="https://example.org/"))
    assert (
        "[compile gfx942](https://example.org/v2/x/compile/gfx942/1.json)" in markdown
    )
    assert r"Arrays \| of \*numbers\*" in markdown
    assert r"numpy.b: needs \`mfma\` \| no (gfx942)" in markdown
    rst = to_rst("T", sheets(made))
    assert "`compile gfx942 <v2/x/compile/gfx942/1.json>`__" in rst
