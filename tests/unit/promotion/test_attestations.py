"""Requirements of a policy for attestations.

The complete truth table and laws, without signatures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime
from itertools import product
from typing import Any

import pytest

from core.errors import FormatError
from core.records import convert
from promotion.evidence.attestations import (
    ANY,
    PUBLIC,
    AttestationReport,
    AttestationRule,
    Identity,
    attestation_problems,
)
from promotion.evidence.evidence import EvidenceFile
from promotion.policy.verdict import verdict
from tests.support import sets
from tests.unit.promotion.test_verdict_laws import GOOD, MINE, POLICY

SET = sets.wheel_set()
NAMES = [wheel.filename for wheel in SET.wheels]
ME = Identity(
    issuer="https://token.actions.githubusercontent.com",
    repository="https://github.com/owner/name",
    workflow=".github/workflows/release.yml",
    ref="refs/heads/main",
)
FORK = replace(ME, repository="https://github.com/other/name")
PRIVATE = "a" * 64
PROJECTS = ("jax-rocm{major}-pjrt", "jax-rocm{major}-plugin", "jaxlib")
RULE = AttestationRule(required=PROJECTS, trust=PUBLIC, identities={"release": ME})
NOW = datetime(2026, 1, 3, tzinfo=UTC)

STATES: dict[str, AttestationReport | None] = {
    "absent": None,
    "good": AttestationReport(wheel="", signers=(ME,), trust=PUBLIC),
    "twice good": AttestationReport(wheel="", signers=(ME, ME), trust=PUBLIC),
    "foreign": AttestationReport(wheel="", signers=(FORK,), trust=PUBLIC),
    "good and foreign": AttestationReport(wheel="", signers=(ME, FORK), trust=PUBLIC),
    "another root": AttestationReport(wheel="", signers=(ME,), trust=PRIVATE),
    "nobody": AttestationReport(wheel="", trust=PUBLIC),
    "bad": AttestationReport(
        wheel="", problems=("x.provenance is not good: it is forged.",)
    ),
    "bad though signed": AttestationReport(
        wheel="",
        signers=(ME,),
        trust=PUBLIC,
        problems=("x.provenance is not good: y.",),
    ),
}
IDENTITIES: dict[str, Mapping[str, Identity] | None] = {
    "anybody": None,
    "nobody": {},
    "me": {"release": ME},
    "me at any ref": {"release": replace(ME, ref=ANY)},
    "me and the fork": {"release": ME, "fork": FORK},
}


def expected(
    state: str,
    required: bool,
    trust: str,
    who: str,
) -> bool:
    """Return the expected decision for a row of the table."""
    if state == "absent":
        return not required
    if state in ("nobody", "bad", "bad though signed"):
        return False
    if trust != ANY and trust != (PRIVATE if state == "another root" else PUBLIC):
        return False
    if state in ("foreign", "good and foreign"):
        return who in ("anybody", "me and the fork")
    return who != "nobody"


def test_attestation_problems_match_truth_table() -> None:
    opened = 0
    rows = [*product(STATES, (True, False), (ANY, PUBLIC, PRIVATE), IDENTITIES)]
    for state, required, trust, who in rows:
        rule = AttestationRule(required=(), trust=trust, identities=IDENTITIES[who])
        one = STATES[state]
        good = [
            AttestationReport(wheel=name, signers=(ME,), trust=PUBLIC)
            for name in NAMES[1:]
        ]
        others = good if expected("good", required, trust, who) else []
        attested = [*others, *([replace(one, wheel=NAMES[0])] if one else [])]
        wheels = NAMES if others else NAMES[:1]
        found = [
            *attestation_problems(wheels, wheels if required else (), rule, attested)
        ]
        assert (found == []) is expected(state, required, trust, who), (
            state,
            required,
            trust,
            who,
            found,
        )
        assert all(text.strip() == text and text.endswith(".") for text in found)
        opened += not found
    assert 0 < opened < len(rows) / 2


def test_verdict_requires_attestations_of_named_projects_only() -> None:
    theirs = replace(
        SET,
        wheels=tuple(
            replace(wheel, source_sha256=wheel.sha256) for wheel in SET.wheels
        ),
    )
    assert all(wheel.as_published for wheel in theirs.wheels)
    policy = replace(
        POLICY, attestations=replace(RULE, required=("jax-rocm{major}-pjrt",))
    )
    for wheel_set in (SET, theirs):
        said = [
            EvidenceFile(evidence=replace(GOOD, set_digest=wheel_set.digest), key=MINE)
        ]
        (reason,) = verdict(wheel_set, said, policy, now=NOW).blocked_by
        assert reason.startswith("jax_rocm7_pjrt-")


@pytest.mark.parametrize("field", [field.name for field in fields(Identity)])
def test_identities_match_exactly(field: str) -> None:
    own = getattr(ME, field)
    for other in (own[:-1], own.upper(), f"{own}/.."):
        signer = replace(ME, **{field: other})
        assert not RULE.admits(signer)
        reasons = [
            *attestation_problems(
                NAMES[:1], (), RULE, [replace(GOOD_ONE, signers=(signer,))]
            )
        ]
        assert reasons == [
            f"{NAMES[0]}.provenance was signed by {signer}, which the policy does not permit."
        ]
    assert RULE.admits(ME)


GOOD_ONE = AttestationReport(wheel=NAMES[0], signers=(ME,), trust=PUBLIC)


# The table in policy.toml

TABLE: dict[str, Any] = {
    "required": [*PROJECTS],
    "trust": PUBLIC,
    "identities": {
        "release": {field.name: getattr(ME, field.name) for field in fields(Identity)}
    },
}


def read_rule(table: dict[str, Any]) -> AttestationRule:
    return convert(table, AttestationRule, "attestations")


def test_parse_rule_reads_table() -> None:
    assert read_rule(TABLE) == RULE
    assert read_rule({**TABLE, "trust": PRIVATE}).trust == PRIVATE


@pytest.mark.parametrize(
    "change",
    [
        {"trust": "some"},
        {"trust": "A" * 64},
        {"identities": {"x": {**TABLE["identities"]["release"], "ref": ""}}},
        {"identities": {"x": {**TABLE["identities"]["release"], "repository": "any"}}},
    ],
)
def test_parse_rule_refuses_invalid_table(change: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        read_rule({**TABLE, **change})
