"""Settings become a BuildRequest here, and what contradicts what is refused."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence

from ci_build.cli.options.rocm import rocm_problems
from ci_build.cli.options.settings import Setting, Settings, words
from ci_build.cli.options.source import source_problems, source_readings, source_request
from ci_build.cli.options.table import (
    CONTAINER_OPTIONS,
    KERNEL_TOOLCHAINS,
    NEEDS_KERNELS,
    REFUSED_WITH_PUBLISHED,
    WARNED_WITH_PUBLISHED,
)
from core.defaults import defaults
from core.errors import RequestError
from core.model import BuildRequest, KernelRequest, Payload, RocmVersion
from core.source_request import SourceRequest

_HELP = "See `ci_build dist_wheels --help`."


def build_request(settings: Settings, *tables: str) -> tuple[BuildRequest, tuple[str, ...]]:
    """Turn settings into a request, with warnings about options that it has no use for.

    Args:
        tables: tables of defaults.toml to consult, first one first.

    Raises:
        RequestError: every contradiction at once.
    """
    from core.targets import expand, is_all

    payload = _payload(settings.get("payload", *tables))
    problems = rocm_problems(settings)
    if payload is Payload.PUBLISHED:
        tables = (*tables, "published")
        problems += [
            f"{settings.get(name).origin} belongs to a build from source and contradicts --payload=published."
            for name in REFUSED_WITH_PUBLISHED
            if settings.given(name)
        ]
        problems += [
            f"{settings.get(name).origin} is about containers, and --payload=published starts none."
            for name in CONTAINER_OPTIONS
            if settings.get(name).origin.startswith("--")
        ]
    else:
        problems += source_problems(settings)
    rocm = settings.get("rocm_version", *tables)
    if rocm.value is None:
        problems.append("--rocm-version is missing; only --payload=published knows it by itself.")
    kernels, more = _kernels(settings, *tables)
    problems += more
    spec = _text(settings.get("targets", *tables))
    # What a build from source holds is what it is told to: there is no other list that `all` could mean.
    listed = payload is Payload.SOURCE or not is_all(spec)

    def jax() -> str:
        return _version(settings.get("jax_version", *tables))

    def source_of(jax_version: str) -> SourceRequest | None:
        return source_request(settings, jax_version, *tables) if payload is Payload.SOURCE else None

    _refuse(
        problems,
        lambda: chosen_pythons(settings, tables),
        lambda: _pythons_of(jax(), settings, tables),
        lambda: source_of(jax()),
        lambda: expand(spec) if listed else None,
        lambda: _positive(settings.get("wheel_post_release")),
        *(source_readings(settings, *tables) if payload is Payload.SOURCE else ()),
    )
    warnings = tuple(
        f"--{name} has no use with --payload=published: nothing is compiled."
        for name in WARNED_WITH_PUBLISHED
        if payload is Payload.PUBLISHED and settings.given(name)
    )
    jax_version = jax()
    pythons, source = _pythons_of(jax_version, settings, tables), source_of(jax_version)
    wanted = expand(spec) if listed else None
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


def _refuse(problems: list[str], *readings: Callable[[], object]) -> None:
    """Raise all contradictions, and everything that cannot be read; one alone keeps its own hint and exit code."""
    errors: dict[str, RequestError] = {}
    for read in readings:
        try:
            read()
        except RequestError as error:
            errors[error.message if error.hint == _HELP else str(error)] = error
    if len(errors) == 1 and not problems:
        raise errors.popitem()[1]
    if errors or problems:
        raise RequestError(" ".join([*problems, *errors]), hint=_HELP)


def _kernels(settings: Settings, *tables: str) -> tuple[KernelRequest | None, list[str]]:
    """What is asked of the kernels, and what contradicts it."""
    if not settings.flag("kernels"):
        given = [name for name in NEEDS_KERNELS if settings.given(name)]
        return None, [f"{settings.get(name).origin} needs --kernels." for name in given]
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
    supported = supported_pythons()
    if not settings.given("python_versions") and "release_local" in tables:
        return this_python_and_one_more(supported, f"{sys.version_info.major}.{sys.version_info.minor}")
    setting = settings.get("python_versions", *tables)
    wanted = [word.strip() for word in _text(setting).split(",") if word.strip()]
    require_known_pythons(wanted, setting.origin)
    return tuple(version for version in supported if version in wanted)


def supported_pythons() -> list[str]:
    """Versions such as 3.12, oldest first."""
    return list(defaults()["pythons"]["supported"])


def require_known_pythons(wanted: Sequence[str], origin: str) -> None:
    """Refuse other versions than the supported ones, and none at all.

    Args:
        origin: who asks for them.

    Raises:
        RequestError: with the versions that are known.
    """
    unknown = [version for version in wanted if version not in supported_pythons()]
    if unknown or not wanted:
        hint = f"Known are {', '.join(supported_pythons())}."
        raise RequestError(f"{origin} asks for {', '.join(unknown) or 'nothing'}.", hint=hint)


def _pythons_of(jax_version: str, settings: Settings, tables: tuple[str, ...]) -> tuple[str, ...]:
    """The Pythons to build for: those that were asked for, or of the default ones those that the release runs with.

    Raises:
        RequestError: one was asked for that the release does not run with.
    """
    from packaging.specifiers import SpecifierSet

    from wheelkit.recipe_base import requires_python

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
