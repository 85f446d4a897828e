"""The environment of this program: variables for child processes, keys, proxies, the user."""

from __future__ import annotations

import difflib
import getpass
import hashlib
import os
import platform
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

import platformdirs

from ci_build.release.release_request import LedgerRequest, SigningKey
from core.errors import MachineError, RequestError
from core.process import CREDENTIAL_VARIABLES, forbid_inspection
from core.report import Reporter
from promotion.storage.bucket_url import bucket_name, is_url

_PROJECT = "jax-rocm-release"
ENV_PREFIX = "CI_BUILD_"
"""Prefix of the environment variables of options."""
SIGNING_KEY = ENV_PREFIX + "SIGNING_KEY"
"""Environment variable that may contain the text of the key that signs evidence."""
LEDGER_KEY = ENV_PREFIX + "LEDGER_KEY"
"""Environment variable that may contain the text of the key that signs ledger entries."""
OTHER_VARIABLES = (
    "bucket",
    "channel",
    "corpus",
    "ledger_key",
    "public_url",
    "signing_key",
    "trust_config",
    "cluster",
    "cluster_store",
)
"""Variables, without prefix and in lower case, besides those of the options in `table.py`."""


def refuse_unknown(options: Iterable[str]) -> None:
    """Refuse variables with the prefix of this program that no option has.

    Empty ones are ignored, as if not set.

    Args:
        options: names of the build options, such as python_versions.

    Raises:
        RequestError: a variable is unknown; the message names the closest known one.
    """
    environ = os.environ
    known = {name.upper() for name in (*options, *OTHER_VARIABLES)}
    allowed = {ENV_PREFIX + name for name in known}
    unknown = sorted(
        name
        for name in environ
        if name.startswith(ENV_PREFIX) and environ[name] and name not in allowed
    )
    if not unknown:
        return
    shown = []
    for name in unknown:
        near = difflib.get_close_matches(
            name.removeprefix(ENV_PREFIX).upper(), known, n=1
        )
        shown.append(f"{name} (did you mean {ENV_PREFIX}{near[0]}?)" if near else name)
    raise RequestError(
        f"Environment variables belong to no option: {', '.join(shown)}.",
        hint="Correct or unset them.",
    )


def child_environment() -> dict[str, str]:
    """Return the environment of child processes, without the signing keys.

    If the user's cache folder is not writable, XDG_CACHE_HOME names its replacement. If
    this environment has signing keys or other credentials, children cannot read them
    from this process either; see `forbid_inspection`.
    """
    if any(
        os.environ.get(name)
        for name in (SIGNING_KEY, LEDGER_KEY, *CREDENTIAL_VARIABLES)
    ):
        forbid_inspection()
    usual = Path(platformdirs.user_cache_dir())
    folder = writable_folder(usual, "cache")
    caches = {} if folder == usual else {"XDG_CACHE_HOME": str(folder)}
    return {
        name: value
        for name, value in os.environ.items()
        if name not in (SIGNING_KEY, LEDGER_KEY)
    } | caches


def find_signing_key(file: Path | None) -> SigningKey:
    """Return the key in the given file, else in the environment, else the user's."""
    if file is not None:
        return SigningKey(file=file, origin="--signing-key")
    if text := os.environ.get(SIGNING_KEY, ""):
        return SigningKey(file=None, text=text, origin=SIGNING_KEY)
    return SigningKey(file=config_folder() / "signing-key", own=True)


def config_folder() -> Path:
    """Return the folder of the user's keys."""
    folder = Path(platformdirs.user_config_dir(_PROJECT))
    if (folder / "signing-key").exists():
        return folder
    return writable_folder(folder, "config")


def ledger_request(
    ledger_key: Path | None,
    channel: str | None = None,
    allow_unprotected: tuple[str, str] | None = None,
    bucket: str = "",
) -> LedgerRequest:
    """Return the key that signs ledger entries, and the ref of a CI run.

    Args:
        ledger_key: file of the key; None selects the key in the environment, if any.
        channel: channel of the index, or None.
        allow_unprotected: owner and reason of a promotion from an unprotected ref.
        bucket: name of the bucket whose newest ledger entries are recorded. Empty
            records nothing.

    Raises:
        RequestError: the owner or the reason is empty or not text in UTF-8.
    """
    key = None
    if ledger_key is not None:
        key = SigningKey(file=ledger_key, origin="--ledger-key")
    elif text := os.environ.get(LEDGER_KEY, ""):
        key = SigningKey(file=None, text=text, origin=LEDGER_KEY)
    owner, reason = (text.strip() for text in allow_unprotected or ("", ""))
    if allow_unprotected is not None and not (owner and reason):
        raise RequestError(
            "--allow-unprotected requires an owner and a reason.", hint="Name both."
        )
    if not (owner + reason).isprintable():
        raise RequestError(
            "The owner or the reason of --allow-unprotected is not plain text.",
            hint="Use UTF-8.",
        )
    commit, ref = ci_ref()
    return LedgerRequest(
        key=key,
        actor=actor(),
        channel=channel or "",
        owner=owner,
        reason=reason,
        ci_commit=commit,
        ci_ref=ref,
        heads=heads_folder(bucket) if bucket else None,
    )


def heads_folder(bucket: str) -> Path:
    """Return the folder with the newest known ledger entries of a bucket."""
    place = bucket if is_url(bucket) else str(Path(bucket_name(bucket)).resolve())
    digest = hashlib.sha256(place.encode()).hexdigest()
    folder = Path(platformdirs.user_state_dir(_PROJECT), "ledger-heads", digest[:16])
    return writable_folder(folder, f"state/ledger-heads/{digest[:16]}")


def ci_ref() -> tuple[str, str]:
    """Return commit and full ref of a run of GitHub or GitLab; empty outside of CI."""
    if ref := os.environ.get("GITHUB_REF"):
        return os.environ.get("GITHUB_SHA", ""), ref
    commit = os.environ.get("CI_COMMIT_SHA", "")
    for name, prefix in (
        ("CI_COMMIT_TAG", "refs/tags/"),
        ("CI_COMMIT_BRANCH", "refs/heads/"),
    ):
        if text := os.environ.get(name):
            return commit, prefix + text
    return commit, ""


def cache_folder() -> tuple[Path, str]:
    """Return the user's cache folder, or its replacement and a warning.

    The warning is empty for the user's folder.
    """
    usual = Path(platformdirs.user_cache_dir(_PROJECT))
    folder = writable_folder(usual, f"cache/{_PROJECT}")
    if folder == usual:
        return folder, ""
    return folder, f"{usual} is not writable; the cache is in {folder}."


def writable_folder(folder: Path, name: str) -> Path:
    """Return a user's folder, or a temporary replacement if it is not writable.

    Args:
        name: path of the replacement, relative to the folder that contains all
            replacements of a user.

    Raises:
        MachineError: the folder of the replacements belongs to another user.
    """
    there = next(place for place in (folder, *folder.parents) if os.path.exists(place))  # noqa: PTH110 - never raises
    # If HOME is unset and the user has no name, the path of the folder begins with "~".
    if folder.is_absolute() and os.access(there, os.W_OK | os.X_OK):
        return folder
    stand_in = Path(tempfile.gettempdir(), f"{_PROJECT}-{os.getuid()}")
    stand_in.mkdir(mode=0o700, exist_ok=True)
    if stand_in.lstat().st_uid != os.getuid():
        raise MachineError(
            f"{folder} is not writable, and its replacement {stand_in} belongs to"
            " another user.",
            hint="Set XDG_CACHE_HOME and XDG_CONFIG_HOME to writable folders.",
        )
    return stand_in / name


def new_reporter(*, verbose: bool = False, quiet: bool = False) -> Reporter:
    """Return a progress reporter that suits standard error.

    A terminal, a file, or the log of a CI service.
    """
    github = os.environ.get("GITHUB_ACTIONS") == "true"
    ci = github or os.environ.get("CI", "").lower() in ("1", "true")
    terminal = (
        sys.stderr.isatty()
        and not ci
        and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")
    )
    return Reporter(terminal=terminal, github=github, verbose=verbose, quiet=quiet)


def proxy_of(url: str) -> str | None:
    """Return the proxy for a URL from http_proxy, https_proxy, all_proxy and no_proxy."""
    # Start-up time: it loads http.client and ssl.
    from urllib.request import getproxies_environment, proxy_bypass

    parts = urlsplit(url)
    proxies = getproxies_environment()
    if proxy_bypass(parts.hostname or ""):
        return None
    return proxies.get(parts.scheme) or proxies.get("all")


def step_summary() -> Path | None:
    """Return the file of the job's summary in GitHub Actions, else None."""
    name = os.environ.get("GITHUB_STEP_SUMMARY", "")
    return Path(name) if name else None


def ci_run() -> str:
    """Return the number of the run of a CI service; empty outside of CI."""
    names = ("GITHUB_RUN_ID", "CI_JOB_ID", "BUILD_ID")
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def actor() -> str:
    """Return the user with the CI run or the machine's name, for ledger entries."""
    run = ci_run()
    try:
        user = os.environ.get("GITHUB_ACTOR") or getpass.getuser()
    except (KeyError, OSError):  # The process owner has no name.
        user = f"uid {os.getuid()}"
    return f"{user}, run {run}" if run else f"{user}@{platform.node()}"
