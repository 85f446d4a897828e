"""Options for Bazel, and parsing of its output."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from core import targets
from core.errors import RequestError
from core.model import GfxTarget
from core.source_request import SourceRequest

_PLAIN = re.compile(r"[\w@%+=:,./~^-]*")
_NEVER = re.compile(r'["\\$`\x00-\x1f]')
_OTHER_ROCMS = ("TF_ROCM_MULTIPLE_PATHS", "ROCM_DISTRO_URL", "ROCM_DISTRO_VERSION")
"""Variables that select another ROCm in rules of Bazel.

XLA: third_party/gpus/rocm_configure.bzl; rules_ml_toolchain: gpu/rocm.
"""
_PROGRESS = re.compile(r"^\[([\d,]+) / ([\d,]+)\]\s*(.*)$")
_PROCESSES = re.compile(r"^INFO: [\d,]+ process(?:es)?: (.*)\.$")
_UNREACHED = re.compile(r"^ERROR: (Failed to query remote execution capabilities: .*)$")
_REMOTE_FAILED = "(Exit 34)"
"""Mark of an action that failed because of the executors; an earlier line has the cause."""
_REMOTE_WARNING = re.compile(r"^WARNING: (.*\b[Rr]emote\b.*)$")
_ERROR = re.compile(r"^ERROR: (?!Build did NOT complete)(.*)$")
_TARGET = re.compile(
    r"(?:from target |target '?|no such target"
    r" ')((?:@@?[\w.~+-]*)?//[^\s)':]*(?::[^\s)',;]+)?)"
)
_COMPILER = re.compile(
    r"(?:^|: )(?:fatal )?error: |^Error in \w+: |: undefined (?:reference to|symbol: )"
)
_RESULTS = re.compile(r"^Target \S+ up-to-date:$")
_RESULT = re.compile(r"^  (\S.*)$")
_BUILD_FILE = re.compile(r"^(/\S*?)/BUILD(?:\.bazel)?:\d+:\d+: ")


def word(value: str) -> str:
    """Return a value quoted for bazelrc files, which build.py may also put into a shell command.

    Raises:
        RequestError: the value has a character that bazelrc files and shells read
            differently.
    """
    if _NEVER.search(value):
        raise RequestError(
            f"Cannot pass {value!r} to Bazel: it has a quote, a backslash, a dollar"
            " sign or a control character.",
            hint="Use a path or a name without such characters.",
        )
    return value if _PLAIN.fullmatch(value) else f'"{value}"'


def setting(option: str, value: str) -> str:
    """Return `--option=value`, quoted where needed."""
    return f"--{option}={word(value)}"


def environment_settings(name: str, value: str, *kinds: str) -> tuple[str, ...]:
    """Return `--repo_env=NAME=value` and `--action_env=NAME=value`, or only the given kinds."""
    return tuple(
        f"--{kind}={name}={word(value)}" for kind in kinds or ("repo_env", "action_env")
    )


def device_options(
    wanted: Iterable[GfxTarget], rocm: str, device_libraries: str
) -> tuple[str, ...]:
    """Return the options that name ROCm, its device libraries and the gfx targets.

    ROCM_PATH selects the ROCm. Rules of some releases prefer other variables, or
    download a ROCm without it; empty values of these variables select nothing, and end
    the build instead of a download (docs/rocm-sources.md). TF_ROCM_AMDGPU_TARGETS
    is set for repository rules and for actions, since a release of XLA may read it in
    only one of them. HCC_AMDGPU_TARGET is hipcc's default for --offload-arch. GPU_ARCHS
    selects the targets of AITER.

    Args:
        device_libraries: folder of device libraries that clang does not find by itself;
            empty if it does.
    """
    chosen = tuple(wanted)
    others: list[str] = []
    for name in _OTHER_ROCMS:
        others += environment_settings(name, "", "repo_env")
    options = [
        *environment_settings("ROCM_PATH", rocm),
        *others,
        *environment_settings("TF_ROCM_AMDGPU_TARGETS", targets.for_bazel(chosen)),
        *environment_settings(
            "HCC_AMDGPU_TARGET", targets.for_bazel(chosen), "action_env"
        ),
        *environment_settings(
            "HIPCC_COMPILE_FLAGS_APPEND", "--offload-compress", "action_env"
        ),
    ]
    if device_libraries:
        # Wrappers of hipcc pass their environment on; XLA's repository rules know only
        # older variables of hipcc.
        options += environment_settings(
            "HIP_DEVICE_LIB_PATH", device_libraries, "action_env"
        )
    if processors := targets.for_aiter(chosen):
        options += environment_settings("GPU_ARCHS", processors, "action_env")
    return tuple(options)


def remote_options(
    source: SourceRequest, platform: str, disk_cache: str
) -> tuple[str, ...]:
    """Return the options of remote execution and of the cache for results of actions.

    Args:
        platform: label of the executors' platform.
        disk_cache: folder of the cache as seen by the build.
    """
    options = []
    if remote := source.remote:
        if remote.endpoint:
            options.append(setting("remote_executor", remote.endpoint))
        if not remote.accept_cached:
            options.append("--noremote_accept_cached")
        options += [
            "--spawn_strategy=remote,worker,sandboxed,local",
            "--remote_timeout=3600",
            "--grpc_keepalive_time=30s",
        ]
    if source.bazelrc:
        # jax's bazelrc makes Bazel print every option that it reads, including headers
        # with tokens.
        options.append("--noannounce_rc")
    elif remote:
        # A bazelrc decides these itself: options here would override it.
        kinds = ("host_platform", "extra_execution_platforms", "platforms")
        options += [setting(kind, platform) for kind in kinds]
        # Local actions need the outputs of remote actions, which are lost with the
        # server unless they are downloaded.
        options += [
            "--remote_local_fallback",
            "--remote_download_outputs=all",
            "--jobs=200",
        ]
    if source.cache_folder:
        options.append(setting("disk_cache", disk_cache))
    elif source.cache:
        options.append(setting("remote_cache", source.cache))
    return tuple(options)


def progress_of(line: str) -> tuple[int, int, str] | None:
    """Return the numbers of finished and of known actions, and the current action.

    None for other lines.
    """
    match = _PROGRESS.match(line)
    if match is None:
        return None
    done, total = (int(number.replace(",", "")) for number in match.group(1, 2))
    return done, total, match[3].strip()


@dataclass(kw_only=True, slots=True)
class ActionCounts:
    """Counts of actions by strategy, parsed from every line of the output in order.

    Attributes:
        counts: number of actions by strategy, such as `remote cache hit` or `sandbox`.
        warning: first warning about executors or a cache, or first error about
            unreachable executors.
    """

    counts: dict[str, int] = field(default_factory=dict)
    warning: str = ""

    def feed(self, line: str) -> None:
        """Parse one line."""
        if not self.warning and (
            match := _UNREACHED.match(line) or _REMOTE_WARNING.match(line)
        ):
            self.warning = match[1].strip()
        if match := _PROCESSES.match(line):
            self.counts = {}
            for part in re.split(r", (?=\d)", match[1]):
                count, _, how = part.strip().partition(" ")
                self.counts[how] = int(count.replace(",", ""))

    @property
    def local(self) -> int:
        """Number of actions that ran on this machine, without Bazel's internal actions."""
        elsewhere = (
            "internal",
            "remote",
            "remote cache hit",
            "disk cache hit",
            "action cache hit",
        )
        return sum(count for how, count in self.counts.items() if how not in elsewhere)

    def summary(self) -> str:
        """Return the counts in one line; empty if no action ran."""
        return ", ".join(
            f"{count:,} {how}"
            for how, count in self.counts.items()
            if how != "internal"
        )


@dataclass(kw_only=True, slots=True)
class Results:
    """Output files of the built target, parsed from every line of the output in order.

    Bazel prints them after a successful build of one target, also if nothing had to
    run.

    Attributes:
        files: paths relative to the workspace, such as
            bazel-bin/jaxlib/tools/dist/x.whl.
    """

    files: list[str] = field(default_factory=list)
    listing: bool = False

    def feed(self, line: str) -> None:
        """Parse one line."""
        if self.listing and (match := _RESULT.match(line)):
            self.files.append(match[1].rstrip())
        else:
            self.listing = _RESULTS.match(line) is not None


@dataclass(kw_only=True, slots=True)
class Failure:
    """The cause of a failed build, parsed from every line of the output in order.

    Attributes:
        root: path of the workspace as seen by the build.
        error: Bazel's first error; unreachable executors count only if there is no
            other error.
        target: label of the failed target, or of its package.
        cause: first compiler or linker error after `error`.
    """

    root: str = ""
    error: str = ""
    target: str = ""
    cause: str = ""

    def feed(self, line: str) -> None:
        """Parse one line."""
        if not self.error or _UNREACHED.fullmatch(f"ERROR: {self.error}"):
            if (match := _ERROR.match(line)) and not (
                self.error and _REMOTE_FAILED in line
            ):
                self.error = match[1].strip()
                self.target = self._target(self.error)
            return
        if not self.cause and _COMPILER.search(line):
            self.cause = line.strip()

    def _target(self, error: str) -> str:
        if match := _TARGET.search(error):
            return match[1]
        # With --verbose_failures Bazel names the BUILD file and not the target.
        match = _BUILD_FILE.match(error)
        return (
            f"//{match[1].removeprefix(self.root).strip('/')}"
            if match and match[1].startswith(self.root)
            else ""
        )

    def summary(self) -> str:
        """Return error, target and cause in one line; empty if Bazel printed no error."""
        target = (
            f"in {self.target}" if self.target and self.target not in self.error else ""
        )
        return "; ".join(part for part in (self.error, target, self.cause) if part)
