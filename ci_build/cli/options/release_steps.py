"""Options of commands that take a set from its build to users: nights and releases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ci_build.cli.options.cluster_options import (
    CLUSTER_VARIABLES,
    cluster_request,
)
from ci_build.cli.options.environment import (
    child_environment,
    find_signing_key,
    ledger_request,
)
from ci_build.cli.options.rocm_options import rocm_storage
from ci_build.cli.options.settings import Settings, split_list
from ci_build.cli.options.shared_options import (
    CHANNELS,
    Values,
    allow_lower_option,
    allow_unprotected_option,
    ledger_key_option,
    option,
    refuse_typed,
    signing_key_option,
    trust_config_option,
)
from ci_build.release.release_request import (
    NO_URL,
    DeviceStep,
    ReleaseOptions,
    ReleaseStep,
)
from core.errors import RequestError
from core.units import parse_url
from promotion.gates.gate_table import CORPORA
from promotion.storage.bucket_url import bucket_name, is_url

if TYPE_CHECKING:  # At run time, it would load requests.
    from core.http.client import Connect


STEP_OPTIONS = (
    option(
        "--corpus",
        "JAX programs to compile.  [default: as the policy requires]",
        choices=CORPORA,
        variable=True,
    ),
    option(
        f"--public-url URL|{NO_URL}",
        (
            "URL of the bucket for users, from which the released index is checked;"
            f" `{NO_URL}` omits this. Required for s3://."
        ),
        variable=True,
    ),
    option(
        "--steps NAME,…",
        (f"Only some of the steps {', '.join(ReleaseStep)}."),
    ),
    option(
        "--jax-tests URL@COMMIT",
        "JAX's suite for the tests on GPUs.  [default: the set's commit]",
    ),
    option(
        "--device-gate",
        (
            "Tests on GPUs: in jobs of other machines, on this one, or on --cluster. "
            " [default: jobs]"
        ),
        choices=("jobs", "here", "cluster"),
    ),
    signing_key_option,
    ledger_key_option,
    trust_config_option,
    allow_lower_option,
    allow_unprotected_option,
)
"""Options of commands that take a set from its build to users."""
USUAL_STEPS = ("bucket", "channel", "public_url", "steps", "device_gate", "ledger_key")
"""Those that the help shows without --help-all."""
NOT_LOCAL = (
    "public_url",
    "steps",
    "jax_tests",
    "device_gate",
    "trust_config",
    "allow_lower",
    "allow_unprotected",
    *CLUSTER_VARIABLES,
)
"""Options of `step_options` that `release --local` does not use."""
STEP_OPTION_NAMES = ("channel", "corpus", "signing_key", "ledger_key", *NOT_LOCAL)
"""Options of `release_options`."""

_NEEDS_STEP = {
    "corpus": ReleaseStep.GATES,
    "signing_key": ReleaseStep.GATES,
    "device_gate": ReleaseStep.GATES,
    "ledger_key": ReleaseStep.PROMOTE,
    "allow_unprotected": ReleaseStep.PROMOTE,
    "public_url": ReleaseStep.CHECK,
}
"""Option -> the only step that uses it; the environment may set options for all steps."""


def release_options(
    given: Values,
    *,
    bucket: str,
    channel: str,
    settings: Settings,
    connect: Connect,
) -> ReleaseOptions:
    """Return the options that `step_options` added.

    Args:
        settings: options of the build, with the user's cache and the settings of
            containers.

    Raises:
        RequestError: a step is unknown, the public URL is missing or invalid, or an
            option has no effect.
    """
    steps = _steps(given["steps"])
    bucket = bucket_name(bucket)
    url = given["public_url"] or ""
    if ReleaseStep.CHECK in steps and not url and is_url(bucket):
        raise RequestError(
            f"The public URL of {bucket.partition('?')[0]} is unknown, and the released"
            " index is checked through it.",
            hint=f"Give --public-url=URL, or --public-url={NO_URL} to omit the check.",
        )
    if (
        url
        and url != NO_URL
        and parse_url(url, "--public-url").scheme not in ("http", "https")
    ):
        raise RequestError(
            f"--public-url is not an http or https URL: {url}.",
            hint="Give the URL that users see.",
        )
    for name, step in _NEEDS_STEP.items():
        if step not in steps:
            hint = "Omit it, or change --steps."
            refuse_typed((name,), f"without the step {step}", hint)
    if not {ReleaseStep.BUILD, ReleaseStep.GATES} & {*steps}:
        refuse_typed(("cluster",), "without the steps build and gates")
    cluster = cluster_request({**given})
    place = given["device_gate"] or "jobs"
    if place == "cluster" and cluster is None:
        raise RequestError(
            "--device-gate=cluster needs --cluster.",
            hint="Give the address of a scheduler.",
        )
    device = None
    if place != "jobs":
        own = cluster if place == "cluster" else None
        device = DeviceStep(
            environ=child_environment(),
            rocm=rocm_storage(settings),
            connect=connect,
            cluster=own,
        )
    return ReleaseOptions(
        bucket=bucket,
        channel=channel,
        corpus=given["corpus"] or "",
        key=find_signing_key(given["signing_key"]),
        connect=connect,
        ledger=ledger_request(
            given["ledger_key"], channel, given["allow_unprotected"], bucket
        ),
        steps=steps,
        public_url=url,
        trust_config=given["trust_config"],
        allow_lower=given["allow_lower"],
        jax_tests=given["jax_tests"] or "",
        cache=settings.cache_dir,
        cluster=cluster,
        device=device,
    )


def local_options(
    given: Values, settings: Settings, connect: Connect
) -> ReleaseOptions:
    """Return the options of `release --local`.

    Raises:
        RequestError: an option of `step_options` or --channel was given.
    """
    refuse_typed(("channel", *NOT_LOCAL), "with --local")
    local = dict.fromkeys(NOT_LOCAL) | {
        "corpus": settings.text("corpus"),
        "steps": f"{ReleaseStep.BUILD},{ReleaseStep.GATES},{ReleaseStep.PROMOTE}",
        # The printed command installs exact versions, so that higher versions in the
        # index do not matter.
        "allow_lower": True,
    }
    return release_options(
        {**given, **local},
        bucket=settings.text("bucket"),
        channel=CHANNELS[0],
        settings=settings,
        connect=connect,
    )


def _steps(text: str | None) -> tuple[ReleaseStep, ...]:
    """Return the steps of a comma-separated list in their order; all for None."""
    if text is None:
        return tuple(ReleaseStep)
    words = split_list(text)
    unknown = sorted({*words} - {*ReleaseStep})
    if unknown or not words:
        raise RequestError(
            f"--steps is invalid: {', '.join(unknown) or 'none given'}.",
            hint=f"Give some of {', '.join(ReleaseStep)}.",
        )
    return tuple(step for step in ReleaseStep if step in words)
