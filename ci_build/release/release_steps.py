"""Releases on the command line.

Staging, gates and promotion of a set, and the command that installs the set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci_build.release import gating
from ci_build.release.index_authority import policy_source, signer_of
from ci_build.release.policy_report import PolicyReport, missing_evidence, show_report
from ci_build.release.release_request import (
    SERVE_PORT,
    STRUCTURE,
    DeviceStep,
    LedgerRequest,
    LocalRelease,
)
from ci_build.wheelset import set_build as dist_wheels
from ci_build.wheelset.source.source_build import PreparedBuild
from ci_build.wheelset.wheel_request import WheelSetRequest
from core.errors import RequestError
from core.model import Verdict, WheelSet
from core.process import HostRunner, Runner, render
from core.report import Reporter
from promotion import promote as promotion_promote
from promotion.check import check
from promotion.evidence.attestation_verification import lazy_verifier
from promotion.gates.common.gate_runs import raise_for_failures
from promotion.gates.gate_table import GATES, GateOptions
from promotion.index.authority import PolicySource
from promotion.index.pages import tiers_text
from promotion.policy.promotion_policy import LOCAL, load_policy
from promotion.promote import Promotion, install_line
from promotion.stage import read_staged, stage
from promotion.storage.bucket import Bucket
from promotion.storage.bucket_url import is_url
from promotion.storage.object_keys import StagedSet

if TYPE_CHECKING:  # start-up time: a dry run builds nothing
    from ci_build.wheelset.execute import BuildResult

_LAUNCHER = Path(__file__).parents[2] / "build" / "ci_build"


def _show_decision(
    reporter: Reporter,
    warnings: Iterable[str],
    bypasses: Iterable[str],
    waivers: Iterable[str],
    attested: Mapping[str, Sized],
) -> None:
    for text in (
        *warnings,
        *(f"Bypass {text}" for text in bypasses),
        *(f"Waiver {text}" for text in waivers),
    ):
        reporter.warning(text)
    for who, names in attested.items():
        reporter.line(f"  attested by {who}: {len(names)} wheels")


def promote(
    staged: StagedSet,
    bucket: Bucket,
    request: LedgerRequest,
    reporter: Reporter,
    runner: Runner,
    actor: str,
    trust_config: Path | None = None,
    *,
    allow_lower: bool = False,
) -> Promotion:
    """Promote a staged set to the channel of a request, and print warnings, bypasses and waivers.

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
    promotion = promotion_promote.promote(
        bucket,
        staged,
        policy,
        actor=actor,
        progress=reporter,
        verify=lazy_verifier(trust_config),
        allow_lower=allow_lower,
        signer=signer_of(request.key) if request.key else None,
        source=policy_source(request, runner),
    )
    _show_decision(
        reporter,
        promotion.warnings,
        promotion.bypasses,
        promotion.waivers,
        promotion.attested,
    )
    state = "promoted" if promotion.new else "was promoted before, nothing changed"
    reporter.line(
        f"  {staged.index}/{staged.digest[:12]} {state}: ledger entry"
        f" {promotion.entry.number}"
    )
    return promotion


def receipt_of(promotion: Promotion) -> Mapping[str, Any]:
    """Return a promotion as JSON values."""
    return {
        "index": promotion.simple,
        "ledger_entry": promotion.entry.number,
        "tiers": dict(promotion.promoted.tiers),
        "bypasses": promotion.bypasses,
        "waivers": promotion.waivers,
        "attested": promotion.attested,
    }


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
    """Return and print the verdict of the policy on a staged set.

    Args:
        bucket_name: value of `--bucket` for the printed commands; empty for the default
            one.
        source: checkout of the policy. None leaves it unchecked.
    """
    policy = load_policy(staged.index, channel=channel)
    verdict = check(
        bucket,
        staged,
        policy,
        verify=lazy_verifier(trust_config),
        allow_lower=allow_lower,
        source=source,
    )
    wheel_set = read_staged(bucket, staged)
    return show_verdict(
        staged, wheel_set, verdict, reporter, channel=channel, bucket_name=bucket_name
    )


def show_verdict(
    staged: StagedSet,
    wheel_set: WheelSet,
    verdict: Verdict,
    reporter: Reporter,
    *,
    channel: str,
    bucket_name: str = "",
) -> PolicyReport:
    """Print the required evidence, warnings, bypasses, waivers and tiers of a verdict.

    See `check_policy`.
    """
    missing = missing_evidence(
        staged, wheel_set, verdict.requirements, channel=channel, bucket=bucket_name
    )
    report = PolicyReport(verdict=verdict, missing=missing)
    show_report(report, reporter)
    _show_decision(
        reporter, verdict.warnings, verdict.bypassed, verdict.waived, verdict.attested
    )
    by_tier: dict[str, list[str]] = {}
    for target, tier in sorted(verdict.tiers.items()):
        by_tier.setdefault(tier, []).append(target)
    tested = "; ".join(
        f"{tier}: {', '.join(targets)}" for tier, targets in by_tier.items()
    )
    reporter.line(f"  {staged.index}/{staged.digest[:12]}, tested at tier {tested}")
    return report


def plan_lines(
    location: str, corpus: str, *, device: DeviceStep | None = None
) -> Iterator[str]:
    """Yield the lines of a dry run for the steps from staging to promotion.

    Args:
        location: folder or URL of the bucket.
        corpus: corpus of the compile gate; empty if the policy names it.
        device: the gate device if it is part of the run.
    """
    bucket = location.partition("?")[0].rstrip("/")
    which = f"{corpus} corpus" if corpus else "the corpus of the policy"
    yield f"stage: the set goes to {bucket}/v2-staging/<index>/<set digest>/"
    yield (
        f"gates: {', '.join(GATES)} ({which}), on the staged bytes; evidence goes"
        " beside them"
    )
    if device:
        place = (
            f"the cluster {device.cluster.address}"
            if device.cluster
            else "this machine, for the targets that it has"
        )
        yield f"gates: device, on the GPUs of {place}"
    yield (
        f"promote: the set is copied to {bucket}/v2/<index>/ if promotion/policy.toml"
        " allows it; ledger, then pages"
    )


def build_and_stage(
    request: WheelSetRequest,
    bucket: Bucket,
    prepared: PreparedBuild,
    reporter: Reporter,
    runner: HostRunner,
) -> tuple[BuildResult, StagedSet]:
    """Build a set, or find that it is up to date, and stage it."""
    built = dist_wheels.dist_wheels(request, prepared, reporter, runner)
    with reporter.group("stage"):
        return built, stage(bucket, built.folder, progress=reporter)


def release_local(
    release: LocalRelease,
    bucket: Bucket,
    prepared: PreparedBuild,
    reporter: Reporter,
    runner: HostRunner,
    *,
    show: bool,
) -> Mapping[str, Any]:
    """Build, stage, gate and promote a set on the channel `local`.

    Args:
        show: print the receipt and the install command.

    Returns:
        The receipt as JSON values.
    """
    reporter.plan(("dist_wheels", "stage", "gates", "promote"))
    built, staged = build_and_stage(
        release.wheel_set, bucket, prepared, reporter, runner
    )
    with reporter.group("gates"):
        signer = gating.find_signer(release.key, reporter)
        evidences = gating.run_gates(
            STRUCTURE,
            staged,
            bucket,
            GateOptions(corpus=release.corpus),
            reporter,
            runner,
            signer,
            cache=release.wheel_set.cache,
        )
    gating.show_evidence(evidences, reporter)
    raise_for_failures(evidences)
    with reporter.group("promote"):
        # The printed command installs exact versions, so that higher versions in the
        # index do not matter.
        promotion = promote(
            staged,
            bucket,
            replace(release.ledger, channel=LOCAL),
            reporter,
            runner,
            release.actor,
            allow_lower=True,
        )
    lines = _install_lines(release.bucket, promotion)
    receipt = {**dist_wheels.receipt(built), **receipt_of(promotion), "install": lines}
    if show:
        dist_wheels.show_receipt(built, reporter)
        reporter.line(
            f"tested at tier: {tiers_text(promotion.promoted.tiers)}; serve the index"
            " and install from it:"
        )
        for line in lines:
            reporter.command(f"  {line}")
    return receipt


def _install_lines(bucket: str, promotion: Promotion) -> tuple[str, ...]:
    """Return the commands that serve a local index and install its newest set."""
    if is_url(bucket):
        # Only the owner of the bucket knows its public URL.
        return (
            install_line(
                promotion.wheel_set,
                f"https://<public URL of the bucket>/{promotion.simple}",
            ),
        )
    here = Path.cwd()
    launcher = str(
        _LAUNCHER.relative_to(here) if _LAUNCHER.is_relative_to(here) else _LAUNCHER
    )
    serve = (
        "python3",
        launcher,
        "index",
        "serve",
        "--bucket",
        bucket,
        "--port",
        str(SERVE_PORT),
    )
    return render(serve), install_line(
        promotion.wheel_set, f"http://127.0.0.1:{SERVE_PORT}/{promotion.simple}"
    )
