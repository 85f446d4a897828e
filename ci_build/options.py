"""Words become a BuildRequest here: options, their environment variables, their defaults, and what contradicts what.

The only module that reads the environment. Each option stands before or after the subcommand, and each value
remembers where it came from.
"""

from __future__ import annotations

import functools
import getpass
import os
import platform
import re
import sys
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click

from ci_build.errors import RequestError
from ci_build.model import BuildRequest, KernelRequest, Payload, RocmVersion
from ci_build.source_options import SOURCE_OPTIONS, source_request

_F = TypeVar("_F", bound=Callable[..., Any])
_ENV_PREFIX = "CI_BUILD_"
_DEFAULTS = Path(__file__).with_name("defaults.toml")

GATES = ("inspection", "abi", "load", "coverage", "compile", "install")
"""The gates that need no GPU, in the order in which they run."""
STRUCTURE = "structure"
"""The word for all of them."""
CORPORA = ("small", "full")
"""What the compile gate may be given, first what it is given when nobody says."""
SERVE_PORT = 8000
"""Port of `ci_build index serve` unless it is told another one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One option's value and where it came from, such as `--targets` or `defaults.toml [build]`."""

    value: Any
    origin: str


_OPTIONS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (("--payload",), {"type": click.Choice([p.value for p in Payload]), "help": "Where native code comes from."}),
    (("--jax-version",), {"metavar": "X.Y.Z", "help": "Release of jax to build for."}),
    (("--python-versions",), {"metavar": "X.Y,…", "help": "Pythons to make wheels for."}),
    (("--rocm-version",), {"metavar": "X.Y.Z", "help": "ROCm that the native code is built against."}),
    (("--targets", "--rocm_amdgpu_targets", "targets"), {"metavar": "GFX,…", "help": "Targets or families."}),
    (("--wheel-post-release",), {"metavar": "N", "help": "Append .postN to every version."}),
    (("--no-rocm-version-extra",), {"is_flag": True, "default": None, "help": "Leave +rocm… out of versions."}),
    (("--no-strip",), {"is_flag": True, "default": None, "help": "Keep symbol tables inside the libraries."}),
    (("--compiler",), {"type": click.Choice(["clang", "gcc"]), "help": "Host compiler of a source build."}),
    (("--therock-path",), {"metavar": "URL|FILE|DIR", "help": "The ROCm: a tarball or a folder."}),
    (("--therock",), {"metavar": "nightly|latest|X.Y.Z", "help": "The ROCm: the newest such build of a listing."}),
    (("--family",), {"metavar": "NAME,…", "help": "Families that it has to hold, such as gfx94X-dcgpu."}),
    (("--therock-index-url",), {"metavar": "URL", "help": "The ROCm: pip packages of this index."}),
    (("--therock-version",), {"metavar": "X.Y.Z", "help": "Version of these packages; the newest by default."}),
    (("--therock-listing",), {"metavar": "URL", "help": "The page that lists the builds."}),
    (("--therock-sha256",), {"metavar": "HEX", "help": "What the tarball's sha256 has to be."}),
    (("--rocm-lock",), {"metavar": "FILE", "help": "Where the ROCm is written down exactly."}),
    (("--locked",), {"is_flag": True, "default": None, "help": "Refuse any ROCm but the one in the lock."}),
    (("--rocm-full",), {"is_flag": True, "default": None, "help": "Unpack also what no build needs."}),
    (("--no-tarball-cache",), {"is_flag": True, "default": None, "help": "Keep no copy of the tarball."}),
    (("--cache-limit",), {"metavar": "SIZE", "help": "Size that the ROCms in the cache may have, such as 60GB."}),
    (("--rocm-build-job",), {"metavar": "NAME", "help": "ROCm of a source build: an internal build job."}),
    (("--rocm-build-num",), {"metavar": "N", "help": "Number of that job's build."}),
    *SOURCE_OPTIONS,
    (("--base-docker",), {"metavar": "IMAGE", "help": "Base image of a source build."}),
    (("--builder-image", "-b"), {"metavar": "IMAGE|search", "help": "Builder image of a source build."}),
    (("--image-registry",), {"metavar": "HOST[/PATH]", "help": "Registry that images are pulled from and pushed to."}),
    (("--container-engine",), {"metavar": "docker|podman|FILE", "help": "Engine that runs containers."}),
    (("--container-network",), {"metavar": "NAME", "help": "Network of a container: host, none or a name."}),
    (("--container-memory",), {"metavar": "SIZE", "help": "Memory that a container may use, such as 64g."}),
    (("--container-shm-size",), {"metavar": "SIZE", "help": "Size of /dev/shm in a container, such as 64g."}),
    (("--kernels",), {"is_flag": True, "default": None, "help": "Also build the kernel modules: wheel jax_aiter."}),
    (("--aiter-source",), {"metavar": "DIR|FILE|amd-aiter==X", "help": "AITER's sources for the kernels."}),
    (("--kernel-toolchain", "--toolchain", "kernel_toolchain"), {"metavar": "NAME", "help": "pypi, rocm, container."}),
    (("--kernel-rocm",), {"metavar": "DIR", "help": "ROCm of the toolchains rocm and container."}),
    (("--kernel-image",), {"metavar": "IMAGE", "help": "Image of the toolchain container."}),
    (("--kernel-modules", "--modules", "kernel_modules"), {"metavar": "NAME,…", "help": "Kernel modules to build."}),
    (("--kernel-instances", "--instances", "kernel_instances"),
     {"metavar": "REGEX", "help": "Only those generated kernels whose name this matches."}),
    (("--require",), {"metavar": "NAME,…", "help": "Kernel modules that every target has to have."}),
    (("--allow-partial",), {"is_flag": True, "default": None, "help": "Leave kernel modules out, and mark the wheel."}),
    (("--rocm-manifest",), {"metavar": "FILE|DIR", "help": "What the ROCm exports: `rocm manifest` or its tree."}),
    (("--out",), {"metavar": "DIR", "help": "Folder for the wheel set."}),
    (("--cache-dir",), {"metavar": "DIR", "help": "Folder for fetched inputs and finished steps."}),
    (("--dry-run",), {"is_flag": True, "default": None, "help": "Print every command and effect; touch nothing."}),
    (("--json",), {"is_flag": True, "default": None, "help": "Print the result as JSON on standard output."}),
    (("--verbose", "-v"), {"is_flag": True, "default": None, "help": "Also print commands and their output."}),
)  # fmt: skip

REFUSED_WITH_PUBLISHED = (
    "rocm_build_job",
    "rocm_build_num",
    "base_docker",
    "builder_image",
    *(words[-1].lstrip("-").replace("-", "_") for words, _ in SOURCE_OPTIONS),
)
"""Options of a source build that contradict `--payload=published`."""

CONTAINER_OPTIONS = (
    "image_registry",
    "container_engine",
    "container_network",
    "container_memory",
    "container_shm_size",
)
"""Options about containers: the environment may set them for a whole machine, whatever is built on it."""

SWITCHES = tuple(words[0].lstrip("-").replace("-", "_") for words, more in _OPTIONS if more.get("is_flag"))
"""Options without a value."""

WARNED_WITH_PUBLISHED = ("compiler",)
"""Options of a source build that `--payload=published` has no use for."""


def build_options(function: _F) -> _F:
    """Give a group or command every build option; `settings` merges what both got."""
    for names, attributes in reversed(_OPTIONS):
        function = click.option(*names, **{"default": None, **attributes})(function)
    return function


def chosen_options(*chosen: str) -> Callable[[_F], _F]:
    """Give a command some of the build options, by their names as identifiers."""
    known = {_identifier(names): (names, attributes) for names, attributes in _OPTIONS}

    def give(function: _F) -> _F:
        for name in reversed(chosen):
            names, attributes = known[name]
            function = click.option(*names, **{"default": None, **attributes})(function)
        return function

    return give


def _identifier(names: tuple[str, ...]) -> str:
    """The name of an option's value: the one that is given as such, else the first one."""
    return next((name for name in names if not name.startswith("-")), names[0].lstrip("-").replace("-", "_"))


KERNEL_TOOLCHAINS = ("pypi", "rocm", "container")
"""Where the compilers of kernels come from."""
NEEDS_KERNELS = (
    "aiter_source", "kernel_toolchain", "kernel_rocm", "kernel_image", "kernel_modules", "kernel_instances",
    "require", "allow_partial",
)  # fmt: skip
"""Options that say how kernels are built, and so need `--kernels`."""


def words(text: str | None) -> tuple[str, ...]:
    """The words of a list with commas."""
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


def option_names() -> tuple[str, ...]:
    """The options' names as identifiers, such as python_versions."""

    @click.command()
    @build_options
    def probe(**_: object) -> None:
        """Holds the options."""

    return tuple(parameter.name for parameter in probe.params if parameter.name)


@functools.cache
def defaults() -> Mapping[str, Mapping[str, Any]]:
    """The embedded defaults, by table."""
    with _DEFAULTS.open("rb") as file:
        return tomllib.load(file)


bucket_option = click.option(
    "--bucket",
    metavar="DIR|URL",
    envvar=_ENV_PREFIX + "BUCKET",
    default=defaults()["release_local"]["bucket"],
    show_default=True,
    help="The bucket: a folder, or s3://NAME/PREFIX?endpoint_url=….",
)
"""For commands that work on a bucket and make no wheels."""

dry_run_option = click.option("--dry-run", is_flag=True, help="List every write to the bucket, and do none.")
"""For commands that write to a bucket and make no wheels."""

CHANNELS = ("local", "nightly", "release")
"""What promotion/policy.toml has a table for."""
channel_option = click.option(
    "--channel",
    type=click.Choice(CHANNELS),
    envvar=_ENV_PREFIX + "CHANNEL",
    default=CHANNELS[0],
    show_default=True,
    help="What the policy asks for.",
)
"""For commands that ask the policy."""

trust_config_option = click.option(
    "--trust-config",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    envvar=_ENV_PREFIX + "TRUST_CONFIG",
    help="Trust configuration (JSON) of a private Sigstore; the public one if none is given.",
)
"""For commands that sign or verify attestations."""

_SIGNING_KEY = _ENV_PREFIX + "SIGNING_KEY"
signing_key_option = click.option(
    "--signing-key",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help=f"Key that signs evidence; else the text of one in {_SIGNING_KEY}, else a key of your own, made at need.",
)
"""For commands that make evidence. The variable holds the key, not its file: a CI service keeps it as a secret."""


def refuse_misplaced(before: Mapping[str, Any], command: str, taken: Collection[str] = ()) -> None:
    """Refuse build options in front of a command that does not take them: they would be ignored, `--dry-run` even.

    Args:
        taken: names of those that it takes, which may stand before it as well as after it.

    Raises:
        RequestError: any other but `--verbose` was given.
    """
    misplaced = [name for name, value in before.items() if value is not None and name not in ("verbose", *taken)]
    if misplaced:
        words = ", ".join("--" + name.replace("_", "-") for name in sorted(misplaced))
        raise RequestError(f"`{command}` does not take {words}.", hint=f"See `ci_build {command} --help`.")


class Settings:
    """Every option with its origin: command line after the subcommand, before it, environment, defaults.

    Args:
        after: values given after the subcommand; None where nothing was given.
        before: values given before it.
        environ: the process environment, or a stand-in.
    """

    def __init__(
        self, after: Mapping[str, Any], before: Mapping[str, Any], environ: Mapping[str, str] | None = None
    ) -> None:
        self._given: dict[str, Setting] = {}
        self._suggested: dict[str, Setting] = {}
        environ = os.environ if environ is None else environ
        for name in sorted({*after, *before, *option_names()}):
            flag = "--" + name.replace("_", "-")
            variable = _ENV_PREFIX + name.upper()
            if after.get(name) is not None:
                self._given[name] = Setting(value=after[name], origin=flag)
            elif before.get(name) is not None:
                self._given[name] = Setting(value=before[name], origin=flag)
            elif environ.get(variable):
                self._given[name] = Setting(value=environ[variable], origin=variable)

    def suggest(self, name: str, value: Any, *, origin: str) -> None:  # noqa: ANN401 - any option's value
        """A value that counts where nobody gave one, before the defaults do."""
        self._suggested[name] = Setting(value=value, origin=origin)

    def get(self, name: str, *tables: str) -> Setting:
        """One option: as given, else suggested, else of the first of the named tables of defaults.toml that has it."""
        for known in (self._given, self._suggested):
            if name in known:
                return known[name]
        for table in tables:
            if name in defaults().get(table, {}):
                return Setting(value=defaults()[table][name], origin=f"defaults.toml [{table}]")
        return Setting(value=None, origin="not given")

    def given(self, name: str) -> bool:
        """Whether a person or the environment set it; a switch that the environment turns off is not set."""
        return name in self._given and (name not in SWITCHES or self.flag(name))

    def flag(self, name: str) -> bool:
        """A switch; an environment variable counts unless it says 0, false or no."""
        value = self.get(name).value
        return value not in (None, False) and str(value).lower() not in ("0", "false", "no")


def build_request(settings: Settings, *tables: str) -> tuple[BuildRequest, tuple[str, ...]]:
    """Turn settings into a request, with warnings about options that it has no use for.

    Args:
        tables: tables of defaults.toml to consult, first one first.

    Raises:
        RequestError: every contradiction at once.
    """
    from ci_build.targets import expand, is_all

    payload = _payload(settings.get("payload", *tables))
    problems = [*_source_problems(settings)]
    if payload is Payload.PUBLISHED:
        tables = (*tables, "published")
        problems += [
            f"--{name.replace('_', '-')} belongs to a build from source and contradicts --payload=published."
            for name in REFUSED_WITH_PUBLISHED
            if settings.given(name)
        ]
        problems += [
            f"--{name.replace('_', '-')} is about containers, and --payload=published starts none."
            for name in CONTAINER_OPTIONS
            if settings.get(name).origin.startswith("--")
        ]
    rocm = settings.get("rocm_version", *tables)
    if rocm.value is None:
        problems.append("--rocm-version is missing; only --payload=published knows it by itself.")
    kernels, more = _kernels(settings, *tables)
    problems += more
    if problems:
        raise RequestError(" ".join(problems), hint="See `ci_build dist_wheels --help`.")
    warnings = tuple(
        f"--{name} has no use with --payload=published: nothing is compiled."
        for name in WARNED_WITH_PUBLISHED
        if payload is Payload.PUBLISHED and settings.given(name)
    )
    spec = _text(settings.get("targets", *tables))
    jax_version = _version(settings.get("jax_version", *tables))
    pythons = _pythons_of(jax_version, settings, tables)
    source = source_request(settings, jax_version, *tables) if payload is Payload.SOURCE else None
    # What a build from source holds is what it is told to: there is no other list that `all` could mean.
    wanted = None if is_all(spec) and source is None else expand(spec)
    if source is not None and source.one_target:
        wanted, pythons = (wanted or ())[:1], pythons[:1]
    request = BuildRequest(
        payload=payload,
        jax_version=jax_version,
        rocm_version=RocmVersion(text=str(rocm.value)),
        python_versions=pythons,
        targets=wanted,
        rocm_version_extra=not settings.flag("no_rocm_version_extra"),
        post_release=_positive(settings.get("wheel_post_release")),
        strip=not settings.flag("no_strip"),
        source=source,
        kernels=kernels,
    )
    return request, warnings


def _kernels(settings: Settings, *tables: str) -> tuple[KernelRequest | None, list[str]]:
    """What is asked of the kernels, and what contradicts it."""
    if not settings.flag("kernels"):
        given = [name for name in NEEDS_KERNELS if settings.given(name)]
        return None, [f"--{name.replace('_', '-')} needs --kernels." for name in given]
    request = KernelRequest(
        modules=words(settings.get("kernel_modules").value),
        toolchain=_text(settings.get("kernel_toolchain", *tables)),
        rocm=str(settings.get("kernel_rocm").value or ""),
        image=str(settings.get("kernel_image").value or ""),
        source=str(settings.get("aiter_source").value or ""),
        require=words(settings.get("require").value),
        allow_partial=settings.flag("allow_partial"),
        instances=str(settings.get("kernel_instances").value or ""),
    )
    if request.toolchain not in KERNEL_TOOLCHAINS:
        return None, [f"--kernel-toolchain is {request.toolchain!r}, not one of {', '.join(KERNEL_TOOLCHAINS)}."]
    if request.rocm and request.toolchain == "pypi":
        return None, ["--kernel-rocm needs --kernel-toolchain=rocm or container."]
    if bool(request.image) != (request.toolchain == "container"):
        return None, ["--kernel-image goes with --kernel-toolchain=container."]
    return request, _instance_problems(request)


def _instance_problems(request: KernelRequest) -> list[str]:
    if not request.instances:
        return []
    problems = []
    if request.toolchain == "pypi":
        problems.append("--kernel-instances needs --kernel-toolchain=rocm or container.")
    if not request.allow_partial:
        problems.append("--kernel-instances leaves kernels out, so it needs --allow-partial.")
    try:
        re.compile(request.instances)
    except re.error as error:
        problems.append(f"--kernel-instances is no regular expression: {error}.")
    return problems


def _source_problems(settings: Settings) -> list[str]:
    problems = []
    if settings.given("rocm_build_num") and not settings.given("rocm_build_job"):
        problems.append("--rocm-build-num needs --rocm-build-job.")
    job = settings.given("rocm_build_job") or settings.given("rocm_build_num")
    problems += [
        f"--{name.replace('_', '-')} excludes --rocm-build-job and --rocm-build-num."
        for name in ("therock_path", "therock", "therock_index_url")
        if job and settings.given(name)
    ]
    return problems


def _text(setting: Setting) -> str:
    return str(setting.value)


def _payload(setting: Setting) -> Payload:
    """From the environment comes any word: only the command line was checked before."""
    try:
        return Payload(setting.value)
    except ValueError as error:
        known = ", ".join(Payload)
        raise RequestError(f"{setting.origin} is {setting.value!r}.", hint=f"Known are {known}.") from error


def _positive(setting: Setting) -> int | None:
    if setting.value is None:
        return None
    text = _text(setting)
    if not text.isdecimal() or int(text) < 1:
        raise RequestError(f"{setting.origin} is {text!r}.", hint="Give a whole number from 1.")
    return int(text)


def _version(setting: Setting) -> str:
    from packaging.version import InvalidVersion, Version

    try:
        return str(Version(_text(setting)))
    except InvalidVersion as error:
        raise RequestError(
            f"{setting.origin} {setting.value!r} is not a version.", hint="Write it like 0.10.2."
        ) from error


def chosen_pythons(settings: Settings, tables: tuple[str, ...]) -> tuple[str, ...]:
    """The Pythons that were asked for, oldest first.

    Raises:
        RequestError: one that is not supported, or none.
    """
    supported = list(defaults()["pythons"]["supported"])
    if not settings.given("python_versions") and "release_local" in tables:
        return this_python_and_one_more(supported, f"{sys.version_info.major}.{sys.version_info.minor}")
    setting = settings.get("python_versions", *tables)
    wanted = [word.strip() for word in _text(setting).split(",") if word.strip()]
    unknown = [word for word in wanted if word not in supported]
    if unknown or not wanted:
        raise RequestError(
            f"{setting.origin} asks for {', '.join(unknown) or 'nothing'}.", hint=f"Known are {', '.join(supported)}."
        )
    return tuple(version for version in supported if version in wanted)


def _pythons_of(jax_version: str, settings: Settings, tables: tuple[str, ...]) -> tuple[str, ...]:
    """The Pythons to build for: those that were asked for, or of the default ones those that the release runs with.

    Raises:
        RequestError: one was asked for that the release does not run with.
    """
    from packaging.specifiers import SpecifierSet

    from ci_build.wheel_facts import requires_python

    pythons, wanted = chosen_pythons(settings, tables), requires_python(jax_version)
    good = tuple(python for python in pythons if python in SpecifierSet(wanted))
    if not good or (settings.given("python_versions") and good != pythons):
        raise RequestError(
            f"jax {jax_version} needs Python {wanted}, and {settings.get('python_versions', *tables).origin} asks for "
            f"{', '.join(python for python in pythons if python not in good)}.",
            hint="Leave these out, or build an older --jax-version.",
        )
    return good


def this_python_and_one_more(supported: list[str], current: str) -> tuple[str, ...]:
    """The running Python and its neighbour, the newer one where there is one."""
    if current not in supported:
        return tuple(supported[-2:])
    at = supported.index(current)
    return tuple(supported[at : at + 2] if at + 1 < len(supported) else supported[at - 1 :])


def environment() -> dict[str, str]:
    """What commands that we start inherit: everything but the key that vouches for them."""
    return {name: value for name, value in os.environ.items() if name != _SIGNING_KEY}


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
    if text := os.environ.get(_SIGNING_KEY, ""):
        return SigningKey(file=None, text=text, origin=_SIGNING_KEY)
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


def cache_dir(settings: Settings) -> Path:
    """Where fetched inputs and finished steps are kept."""
    given = settings.get("cache_dir").value
    if given:
        return Path(given)
    import platformdirs

    return Path(platformdirs.user_cache_dir("jax-rocm-release"))


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


PLATFORMS = ("rocm", "cpu", "cuda")
"""What the device gate runs on, first what it runs on when nobody says."""
SIZES = ("small", "medium", "large")
"""How much of JAX's suite it runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceOptions:
    """Words for the device gate; `ci_build.releasing.device_gate.tell` makes sense of them.

    Attributes:
        test_timeout: seconds for each test.
    """

    platform: str
    family: str
    jax_tests: str
    size: str
    test_list: Path | None
    tests: tuple[str, ...]
    shard: str
    devices: int | None
    workers_per_device: str
    workers: int
    cpus: int | None
    python: str
    rocm: Path | None
    also: Path | None
    image: str
    work: Path | None
    retries: int
    test_timeout: float


_DEVICE_OPTIONS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (("--platform",), {"type": click.Choice(PLATFORMS), "default": PLATFORMS[0], "show_default": True}),
    (("--family",), {"metavar": "NAME", "default": "", "help": "What GPUs the runner has, such as gfx94X-dcgpu."}),
    (("--jax-tests",), {"metavar": "PATH|URL@commit", "default": "", "help": "JAX's suite; else the smoke suite."}),
    (("--size",), {"type": click.Choice(SIZES), "help": "How much of JAX's suite; large if not given."}),
    (("--also",), {"metavar": "FILE", "type": click.Path(path_type=Path, exists=True, dir_okay=False),
      "help": "Hash-locked requirements to install beside the set: NVIDIA's plugin."}),
    (("--python",), {"metavar": "X.Y", "default": "", "help": "Python of the set to test with; else its first here."}),
)  # fmt: skip
_RUN_OPTIONS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (("--test-list",), {"metavar": "FILE", "type": click.Path(path_type=Path), "help": "Only these files and tests."}),
    (("--test", "tests"), {"metavar": "ID", "multiple": True, "help": "Only this one; such evidence is not kept."}),
    (("--shard",), {"metavar": "I/N", "default": "", "help": "Part I of N; `gate merge` joins them."}),
    (("--devices",), {"metavar": "N", "type": click.IntRange(1),
      "help": "How many this runner has; else as promotion/families.toml says of the family."}),
    (("--workers-per-device",), {"metavar": "N|auto", "default": "", "help": "Let so many share a device; else 1."}),
    (("--workers",), {"metavar": "N", "type": click.IntRange(1), "help": "Workers on a CPU; else as it can bear."}),
    (("--cpus",), {"metavar": "N", "type": click.IntRange(1), "help": "Cores to use; else those that are allotted."}),
    (("--rocm",), {"metavar": "DIR", "type": click.Path(path_type=Path, exists=True), "help": "The ROCm to load."}),
    (("--image",), {"metavar": "NAME@sha256:…", "default": "", "help": "The container's image, for the evidence."}),
    (("--work",), {"metavar": "DIR", "type": click.Path(path_type=Path), "help": "Keep the run here; go on with it."}),
    (("--retries",), {"metavar": "N", "type": click.IntRange(0), "default": 40, "show_default": True,
      "help": "Try so many failures again in fresh processes, or none if there are more."}),
    (("--test-timeout",), {"metavar": "SECONDS", "type": click.FloatRange(1.0), "default": 900.0,
      "show_default": True, "help": "After so long a test hangs."}),
)  # fmt: skip


def device_options(function: _F) -> _F:
    """Give a command what says which run of the device gate is meant."""
    for names, attributes in reversed(_DEVICE_OPTIONS):
        function = click.option(*names, **attributes)(function)
    return function


def device_run_options(function: _F) -> _F:
    """Give a command what says how such a run is done."""
    for names, attributes in reversed(_RUN_OPTIONS):
        function = click.option(*names, **attributes)(function)
    return function


def device_words(given: Mapping[str, Any]) -> DeviceOptions:
    """What a command was given, with what nobody said."""
    nobody: dict[str, Any] = {"test_list": None, "tests": (), "shard": "", "workers_per_device": "", "cpus": None}
    nobody |= {
        "devices": None,
        "workers": 0,
        "rocm": None,
        "also": None,
        "image": "",
        "work": None,
        "retries": 40,
        "test_timeout": 900.0,
    }
    words = {**nobody, **{name: value for name, value in given.items() if value is not None}}
    return DeviceOptions(**{"size": "", **words})
