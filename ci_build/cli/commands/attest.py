"""The command `ci_build set attest`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
import cloup

from ci_build.cli.common import State, open_bucket, print_json
from ci_build.cli.options.shared_options import (
    bucket_option,
    channel_option,
    dry_run_option,
    json_option,
    option,
    refuse_typed,
    trust_config_option,
)
from core.errors import PromotionBlockedError
from core.report import Reporter
from promotion.attestations import (
    VerificationReport,
    job_signer,
    verify_files,
    verify_set,
)
from promotion.attestations import attest as go


@cloup.command()
@click.argument("wheel_set", metavar="SET")
@option("--verify", "Verify the attestations instead of signing.", name="verify_only")
@channel_option
@trust_config_option
@bucket_option
@dry_run_option
@json_option
@click.pass_obj
def attest(
    state: State,
    /,
    wheel_set: str,
    channel: str,
    trust_config: Path | None,
    bucket: str,
    *,
    verify_only: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Sign the wheels of a staged set with the identity of this CI job (PEP 740).

    Promotion publishes the attestations. SET is INDEX/DIGEST as printed by `set stage`.
    With --verify, SET may also be a wheel or a directory of wheels, with the
    attestations (`<wheel>.provenance`) beside the wheels. The policy of the channel
    lists the accepted signers.
    """
    from ci_build.release import gating  # Start-up time: the gates load auditwheel.

    reporter = state.reporter()
    if verify_only:
        refuse_typed(("dry_run",), "with --verify")
        place = Path(wheel_set)
        if place.exists():
            found = verify_files(place, channel, trust_config)
        else:
            opened = open_bucket(bucket, reporter)
            staged = gating.find_staged(wheel_set, opened)
            found = verify_set(opened, staged, channel, trust_config)
        _report(reporter, found, as_json=as_json)
        return
    refuse_typed(("channel",), "without --verify")
    opened = open_bucket(bucket, reporter, dry_run=dry_run)
    staged = gating.find_staged(wheel_set, opened)
    done: Sequence[str] = go(opened, staged, job_signer(trust_config), reporter)
    if as_json:
        print_json({"set": str(staged), "attested": done})
        return
    reporter.line(f"  {len(done)} wheels attested" if done else "  nothing to attest")


def _report(reporter: Reporter, found: VerificationReport, *, as_json: bool) -> None:
    """Print the verified attestations.

    Raises:
        PromotionBlockedError: an attestation is missing or wrong.
    """
    for text in found.notes:
        reporter.warning(text)
    if as_json:
        print_json(found)
    else:
        for who, wheels in found.attested.items():
            for wheel in wheels:
                reporter.line(f"  {wheel}: {who}")
    if found.problems:
        raise PromotionBlockedError(
            "\n  ".join(("Attestations are missing or wrong:", *found.problems))
        )
