"""Compatibility tables contain exactly the results in the evidence."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from core.errors import FormatError
from core.model import Outcome, Tier
from promotion.compatibility.module_support import (
    COMPAT_FILE,
    CheckOutcome,
    EvidenceChecks,
    JaxModule,
    load_spec,
    module_test,
)
from promotion.compatibility.tables import make_tables, to_markdown
from promotion.index.ledger import LedgerEntry
from promotion.index.set_summary import ModuleTest, SetContent
from tests.support import sets

NUMPY = JaxModule(
    name="jax.numpy",
    description="Arrays",
    checks=("numpy.*", "test_numpy.py"),
)
SPARSE = JaxModule(
    name="jax.experimental.sparse", description="Sparse", checks=("sparse.*",)
)


def check(name: str, outcome: str = "passed", reason: str = "") -> dict[str, str]:
    return {
        "name": name,
        "outcome": outcome,
        "reason": reason,
    }


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
    with pytest.raises(FormatError):
        load_spec(file)


def test_module_support_uses_strongest_gate() -> None:
    told = [
        evidence(check("numpy.a"), check("numpy.b")),
        evidence(check("test_numpy.py"), gate="device"),
        evidence(check("numpy.a"), target="gfx950"),
    ]
    found = module_test(NUMPY, told)
    assert found is not None
    assert found.works == {"gfx942": "device", "gfx950": "compiled"}
    assert module_test(SPARSE, told) is None


def test_module_support_prefers_failure_of_stronger_gate() -> None:
    failed = evidence(
        check("test_numpy.py", "failed"), gate="device", outcome=Outcome.FAILED
    )
    found = module_test(NUMPY, [evidence(check("numpy.a")), failed])
    assert found is not None
    assert not found.works
    assert found.unsupported == ("test_numpy.py (gfx942)",)


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
    found = module_test(NUMPY, [evidence(*checks, outcome=outcome)])
    assert found is not None
    assert bool(found.works) is works
    bad = sum(item["outcome"] != "passed" for item in checks)
    assert len(found.unsupported) == bad


GOOD = SetContent(
    wheels={},
    modules=(
        ModuleTest(
            name="jax.numpy",
            description="",
            works={"gfx942": "compiled"},
            unsupported=("numpy.b: needs `mfma` | no (gfx942)",),
        ),
    ),
)
BAD = SetContent(wheels={})


@pytest.mark.parametrize(
    ("history", "since"),
    [
        (
            [
                (entry(1, "0.9.1"), GOOD),
                (entry(2, "0.10.2"), BAD),
            ],
            ("", ""),
        ),
        (
            [
                (entry(1, "0.9.1"), GOOD),
                (entry(2, "0.10.0"), None),
                (entry(3, "0.10.2"), GOOD),
            ],
            ("0.10.2", "7.2.0"),
        ),
        (
            [
                (entry(1, "0.10.2", "7.10.0"), GOOD),
                (entry(2, "0.9.1", "7.2.0"), GOOD),
            ],
            ("0.9.1", "7.2.0"),
        ),
    ],
)
def test_make_tables_finds_first_supported_versions(
    history: list[tuple[LedgerEntry, SetContent | None]], since: tuple[str, str]
) -> None:
    contents = {entry.number: content for entry, content in history}
    made = make_tables(
        "multi-arch",
        [entry for entry, _ in history],
        lambda entry: contents[entry.number],
        libraries={},
        rocm="",
        rocm_source="",
    )
    rows = {row["name"]: row for row in made.modules}
    numpy = rows.pop("jax.numpy")
    assert (numpy["since_jax"], numpy["since_rocm"]) == since
    assert not any(row["works"] or row["tested"] for row in rows.values())


def test_markdown_escapes_text_and_names_versions() -> None:
    made = make_tables(
        "multi-arch",
        [entry(1, "0.10.2")],
        lambda _: GOOD,
        libraries={"libhipblas.so.3": "3.1.70200"},
        rocm="7.2.0",
        rocm_source="a local folder",
    )
    lines = to_markdown(made, base="https://example.org/").splitlines()
    assert any("| hipBLAS | 3.1.70200 |" in line for line in lines)
    (row,) = [line for line in lines if line.startswith("| jax.numpy |")]
    assert r"gfx942: compiled | numpy.b: needs \`mfma\` \| no (gfx942) |" in row
