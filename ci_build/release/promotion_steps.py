"""Verdicts and promotions on the command line: the policy's report, and the receipt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from pathlib import Path

from ci_build.release.index_authority import (
    check_recorded,
    heads_of,
    policy_source,
    record_head,
    signer_of,
)
from ci_build.release.policy_report import PolicyReport, missing_evidence, show_report
from ci_build.release.release_request import LedgerRequest
from core.errors import RequestError
from core.process import Runner
from core.report import Reporter
from promotion import promote as promotion_promote
from promotion.check import check
from promotion.evidence.attestation_verification import lazy_verifier
from promotion.index.authority import PolicySource
from promotion.index.pages import tiers_text
from promotion.policy.promotion_policy import load_policy
from promotion.promote import Promotion
from promotion.stage import read_staged
from promotion.storage.bucket import Bucket
from promotion.storage.object_keys import ReleasedIndex, StagedSet


def _show_decision(
    reporter: Reporter,
    warnings: Iterable[str],
    exceptions: Iterable[str],
    attested: Mapping[str, Sized],
) -> None:
    for text in (*warnings, *(f"Exception {text}" for text in exceptions)):
        reporter.warning(text)
    for who, names in attested.items():
        reporter.line(f"  attested by {who}: {len(names)} wheels")


def promote(
    staged: StagedSet,
    bucket: Bucket,
    request: LedgerRequest,
    reporter: Reporter,
    runner: Runner,
    trust_config: Path | None = None,
    *,
    allow_lower: bool = False,
) -> Promotion:
    """Promote a staged set to the channel of a request, and print warnings and exceptions.

    Raises:
        RequestError: the policy of the channel refuses the key, or
            `--allow-unprotected` has no effect on the channel.
        PromotionBlockedError: the policy blocks the set.
    """
    policy = load_policy(staged.index, channel=request.channel)
    if request.owner and policy.protected_refs is None:
        raise RequestError(
            f"--allow-unprotected has no effect: channel {policy.channel} accepts every"
            " checkout.",
            hint="Omit it.",
        )
    released = ReleasedIndex(index=staged.index)
    heads = heads_of(request, policy.authority())
    if heads is not None:
        check_recorded(heads, bucket, released)
    promotion = promotion_promote.promote(
        bucket,
        staged,
        policy,
        actor=request.actor,
        progress=reporter,
        verify=lazy_verifier(trust_config),
        allow_lower=allow_lower,
        signer=signer_of(request.key) if request.key else None,
        source=policy_source(request, runner),
    )
    _show_decision(
        reporter, promotion.warnings, promotion.exceptions, promotion.attested
    )
    if heads is not None:
        record_head(heads, bucket, released, policy.authority())
    state = "promoted" if promotion.new else "was promoted before, nothing changed"
    name = f"{staged.index}/{staged.digest[:12]}"
    reporter.line(f"  {name} {state}: ledger entry {promotion.entry.number}")
    return promotion


def check_policy(
    staged: StagedSet,
    bucket: Bucket,
    channel: str,
    reporter: Reporter,
    trust_config: Path | None = None,
    *,
    allow_lower: bool = False,
    bucket_name: str = "",
    source: PolicySource | None = None,
) -> PolicyReport:
    """Return the verdict of the policy on a staged set.

    Print the required evidence, warnings, exceptions and tiers.

    Args:
        bucket_name: value of `--bucket` for the printed commands; empty for the default
            one.
        source: checkout of the policy. None leaves it unchecked.
    """
    verdict = check(
        bucket,
        staged,
        load_policy(staged.index, channel=channel),
        verify=lazy_verifier(trust_config),
        allow_lower=allow_lower,
        source=source,
    )
    missing = missing_evidence(
        staged,
        read_staged(bucket, staged),
        verdict.requirements,
        channel=channel,
        bucket=bucket_name,
    )
    report = PolicyReport(verdict=verdict, missing=missing)
    show_report(report, reporter)
    _show_decision(reporter, verdict.warnings, verdict.excused, verdict.attested)
    name = f"{staged.index}/{staged.digest[:12]}"
    reporter.line(f"  {name}: {tiers_text(verdict.tiers, verdict.failing)}")
    return report
