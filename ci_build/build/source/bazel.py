"""Options that Bazel gets, and what its output tells; pure, and the same whatever build.py stands in between."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from core import targets
from core.errors import RequestError
from core.model import GfxTarget
from core.source_request import ActionCache, Credentials, Remote

_PLAIN = re.compile(r"[\w@%+=:,./~^-]*")
_NEVER = re.compile(r'["\\$`\x00-\x1f]')
_PROGRESS = re.compile(r"^\[([\d,]+) / ([\d,]+)\]\s*(.*)$")
_PROCESSES = re.compile(r"^INFO: [\d,]+ process(?:es)?: (.*)\.$")
_UNREACHED = re.compile(r"^ERROR: (Failed to query remote execution capabilities: .*)$")
_REMOTE_FAILED = "(Exit 34)"
"""How Bazel marks an action that failed because of the executors: why they cannot be reached, it told before."""
_REMOTE_WARNING = re.compile(r"^WARNING: (.*\b[Rr]emote\b.*)$")
_ERROR = re.compile(r"^ERROR: (?!Build did NOT complete)(.*)$")
_TARGET = re.compile(r"(?:from target |target '?|no such target ')((?:@@?[\w.~+-]*)?//[^\s)':]*(?::[^\s)',;]+)?)")
_COMPILER = re.compile(r"(?:^|: )(?:fatal )?error: |^Error in \w+: |: undefined (?:reference to|symbol: )")
_BUILD_FILE = re.compile(r"^(/\S*?)/BUILD(?:\.bazel)?:\d+:\d+: ")


def word(value: str) -> str:
    """A value that Bazel reads from a bazelrc and that one build.py also puts into a shell command.

    Raises:
        RequestError: it has a character that the two would read differently.
    """
    if _NEVER.search(value):
        raise RequestError(
            f"{value!r} cannot be handed to Bazel: it has a quote, a backslash, a dollar sign or a control character.",
            hint="Use a path or a name without these.",
        )
    return value if _PLAIN.fullmatch(value) else f'"{value}"'


def setting(option: str, value: str) -> str:
    """`--option=value`, quoted where needed."""
    return f"--{option}={word(value)}"


def environment_settings(name: str, value: str, *kinds: str) -> tuple[str, ...]:
    """`--repo_env=NAME=value` and `--action_env=NAME=value`, or those of the two that are named."""
    return tuple(f"--{kind}={name}={word(value)}" for kind in kinds or ("repo_env", "action_env"))


def device_options(wanted: Iterable[GfxTarget], rocm: str) -> tuple[str, ...]:
    """What every rule and action has to know of ROCm and the gfx targets.

    TF_ROCM_AMDGPU_TARGETS goes to repository rules and to actions, because releases of XLA differ in where they read
    it; HCC_AMDGPU_TARGET is what hipcc compiles for where nobody gives --offload-arch; GPU_ARCHS is AITER's.
    """
    chosen = tuple(wanted)
    options = [
        *environment_settings("ROCM_PATH", rocm),
        *environment_settings("TF_ROCM_AMDGPU_TARGETS", targets.for_bazel(chosen)),
        *environment_settings("HCC_AMDGPU_TARGET", targets.for_bazel(chosen), "action_env"),
        *environment_settings("HIPCC_COMPILE_FLAGS_APPEND", "--offload-compress", "action_env"),
    ]
    if with_kernels := targets.with_aiter(chosen):
        options += environment_settings("GPU_ARCHS", targets.for_aiter(with_kernels), "action_env")
    return tuple(options)


def xla_options(folder: str) -> tuple[str, ...]:
    """Another XLA than the one that the sources pin, for both of Bazel's ways to find repositories."""
    return (setting("override_repository", f"xla={folder}"), setting("override_module", f"xla={folder}"))


def cache_options(cache: ActionCache, disk: str) -> tuple[str, ...]:
    """Where results of actions are kept.

    Bazel has no option that would keep it from writing to a cache on disk; where that is wanted, `disk` is a copy.

    Args:
        disk: the disk cache's folder as the build sees it.
    """
    options = []
    if cache.disk:
        options.append(setting("disk_cache", disk))
    if cache.remote:
        options.append(setting("remote_cache", cache.remote))
        if cache.read_only:
            options.append("--remote_upload_local_results=false")
    return tuple(options)


def credential_options(given: Credentials, seen: Credentials, servers: Iterable[str]) -> tuple[str, ...]:
    """What opens remote executors and caches, by the paths of files alone.

    Args:
        given: which of the files there are.
        seen: their paths as the build sees them.
        servers: URLs that the credential helper is for; it is asked for no other host, unless one of them is empty:
            Bazel alone knows that one.
    """
    options = []
    if given.ca:
        options.append(setting("tls_certificate", seen.ca))
    if given.cert:
        options += [setting("tls_client_certificate", seen.cert), setting("tls_client_key", seen.key)]
    if given.credential_helper:
        hosts = [urlsplit(url).hostname for url in servers]
        scopes = dict.fromkeys(f"{host}=" if all(hosts) else "" for host in hosts)
        options += [setting("credential_helper", f"{scope}{seen.credential_helper}") for scope in scopes]
    if given.bazelrc:
        # jax's own bazelrc lets Bazel print what it reads, headers with tokens too.
        options.append("--noannounce_rc")
    return tuple(options)


def remote_options(remote: Remote | None) -> tuple[str, ...]:
    """Remote execution, and building here what the executors fail to take, where that is wanted."""
    if remote is None:
        return ()
    options = []
    if remote.endpoint:
        options.append(setting("remote_executor", remote.endpoint))
    if remote.platform:
        kinds = ("host_platform", "extra_execution_platforms", "platforms")
        options += [setting(kind, remote.platform) for kind in kinds]
    if not remote.accept_cached:
        options.append("--noremote_accept_cached")
    return (
        *options,
        "--spawn_strategy=remote,worker,sandboxed,local",
        *_fallback(wanted=remote.fallback),
        "--remote_timeout=3600",
        "--grpc_keepalive_time=30s",
        f"--jobs={remote.jobs}",
    )


def _fallback(*, wanted: bool) -> tuple[str, ...]:
    """What is built here needs what was built there: unless it was brought here at once, it is gone with the server."""
    if not wanted:
        return ("--noremote_local_fallback",)
    return ("--remote_local_fallback", "--remote_download_outputs=all")


def output_options() -> tuple[str, ...]:
    """Lines that a program can read: no colours, no cursor movements, progress at most once a second."""
    return ("--color=no", "--curses=no", "--show_progress_rate_limit=1")


def progress_of(line: str) -> tuple[int, int, str] | None:
    """Actions done, actions known so far, and what goes on; None for a line that is no progress."""
    found = _PROGRESS.match(line)
    if found is None:
        return None
    return int(found[1].replace(",", "")), int(found[2].replace(",", "")), found[3].strip()


def processes_of(line: str) -> dict[str, int] | None:
    """How actions were carried out, such as `remote cache hit`, `remote`, `sandbox`; None for any other line."""
    found = _PROCESSES.match(line)
    if found is None:
        return None
    parts = (part.strip().partition(" ") for part in re.split(r", (?=\d)", found[1]))
    return {how: int(count.replace(",", "")) for count, _, how in parts}


@dataclass(kw_only=True, slots=True)
class Carried:
    """Where actions were carried out, and why not on the executors: feed it every line in order.

    Attributes:
        counts: as `processes_of` tells.
        warning: the first one that is about executors or a cache; that there are none, Bazel calls an error.
    """

    counts: dict[str, int] = field(default_factory=dict)
    warning: str = ""

    def feed(self, line: str) -> None:
        """Look at one line."""
        if not self.warning and (found := _UNREACHED.match(line) or _REMOTE_WARNING.match(line)):
            self.warning = found[1].strip()
        if (counts := processes_of(line)) is not None:
            self.counts = counts

    @property
    def here(self) -> int:
        """Actions that were carried out on this machine; what Bazel does within itself is none."""
        elsewhere = ("internal", "remote", "remote cache hit", "disk cache hit", "action cache hit")
        return sum(count for how, count in self.counts.items() if how not in elsewhere)

    def summary(self) -> str:
        """One line; empty when nothing was carried out."""
        return ", ".join(f"{count:,} {how}" for how, count in self.counts.items() if how != "internal")


@dataclass(kw_only=True, slots=True)
class Failure:
    """Why a build failed, as far as its output has told: feed it every line in order.

    Attributes:
        root: folder of the workspace, as the build sees it.
        error: Bazel's first error, where there is another one than that the executors cannot be reached: with a
            fallback that one is none.
        target: label of the target that it is about, or of its package where no more is told.
        cause: the first error of a compiler or linker after it, which says more.
    """

    root: str = ""
    error: str = ""
    target: str = ""
    cause: str = ""

    def feed(self, line: str) -> None:
        """Look at one line."""
        if not self.error or _UNREACHED.fullmatch(f"ERROR: {self.error}"):
            if (found := _ERROR.match(line)) and not (self.error and _REMOTE_FAILED in line):
                self.error = found[1].strip()
                self.target = self._target(self.error)
            return
        if not self.cause and _COMPILER.search(line):
            self.cause = line.strip()

    def _target(self, error: str) -> str:
        if found := _TARGET.search(error):
            return found[1]
        # With --verbose_failures Bazel names the BUILD file and not the target.
        found = _BUILD_FILE.match(error)
        return f"//{found[1].removeprefix(self.root).strip('/')}" if found and found[1].startswith(self.root) else ""

    def summary(self) -> str:
        """One line; empty when no line was an error of Bazel's."""
        target = f"in {self.target}" if self.target and self.target not in self.error else ""
        return "; ".join(part for part in (self.error, target, self.cause) if part)
