"""What the environment says of the place that we run in: what commands inherit, keys, proxies, who runs this."""

from __future__ import annotations

import getpass
import os
import platform
import sys
from dataclasses import dataclass, field
from pathlib import Path

ENV_PREFIX = "CI_BUILD_"
"""What the variable of an option begins with."""
SIGNING_KEY = ENV_PREFIX + "SIGNING_KEY"
"""The variable that may hold the key that signs evidence."""


def environment() -> dict[str, str]:
    """What commands that we start inherit: everything but the key that vouches for them."""
    return {name: value for name, value in os.environ.items() if name != SIGNING_KEY}


@dataclass(frozen=True, kw_only=True, slots=True)
class SigningKey:
    """Where the key is that signs evidence.

    Attributes:
        file: the file; None when the environment holds the key.
        text: the key, never shown; empty when a file holds it.
        origin: for errors.
        own: it is the user's own, which is made when it is needed.
    """

    file: Path | None
    text: str = field(default="", repr=False)
    origin: str = ""
    own: bool = False


def signing_key(file: Path | None) -> SigningKey:
    """The key that was given, else that of the environment, else the user's own."""
    if file is not None:
        return SigningKey(file=file, origin="--signing-key")
    if text := os.environ.get(SIGNING_KEY, ""):
        return SigningKey(file=None, text=text, origin=SIGNING_KEY)
    import platformdirs

    return SigningKey(file=Path(platformdirs.user_config_dir("jax-rocm-release"), "signing-key"), own=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """What the environment says of the place that we run in.

    Attributes:
        terminal: a person watches on standard error.
        groups: it folds `::group::` lines.
    """

    terminal: bool
    groups: bool

    @classmethod
    def detect(cls) -> Surroundings:
        """Read CI, GITHUB_ACTIONS, TERM and whether standard error is a terminal."""
        ci = os.environ.get("CI", "").lower() in ("1", "true")
        terminal = sys.stderr.isatty() and not ci and os.environ.get("TERM") != "dumb"
        return cls(terminal=terminal, groups=os.environ.get("GITHUB_ACTIONS") == "true")


def proxy_of(url: str) -> str | None:
    """The proxy that the environment names for a URL: http_proxy, https_proxy, all_proxy, no_proxy."""
    from urllib.parse import urlsplit
    from urllib.request import getproxies_environment, proxy_bypass

    parts, proxies = urlsplit(url), getproxies_environment()
    if proxy_bypass(parts.hostname or ""):
        return None
    return proxies.get(parts.scheme) or proxies.get("all")


_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_CERTIFICATES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")


def connection() -> tuple[dict[str, str], str]:
    """How this machine reaches others: variables that name proxies, and a file of certificates or nothing."""
    names = (*_PROXIES, *map(str.upper, _PROXIES))
    proxies = {name: os.environ[name] for name in names if os.environ.get(name)}
    files = [os.environ.get(name, "") for name in _CERTIFICATES]
    return proxies, next((file for file in files if file and Path(file).is_file()), "")


def actor() -> str:
    """Who runs this, for records: a CI service's run, else the user and the machine."""
    run = os.environ.get("GITHUB_RUN_ID") or os.environ.get("CI_JOB_ID") or os.environ.get("BUILD_ID")
    user = os.environ.get("GITHUB_ACTOR") or _user()
    return f"{user}, run {run}" if run else f"{user}@{platform.node()}"


def _user() -> str:
    """Who owns this process; a user without a name goes by number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
