"""Conversion of settings into requests; contradictory settings are refused."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion

from ci_build.cli.options.rocm_options import (
    find_rocm,
    rocm_defaults,
    rocm_problems,
    rocm_storage,
)
from ci_build.cli.options.settings import Problems, Setting, Settings, split_list
from ci_build.cli.options.source_options import (
    source_defaults,
    source_problems,
    source_request,
)
from ci_build.cli.options.table import (
    CONTAINER_OPTIONS,
    NEEDS_KERNELS,
    REFUSED_WITH_PUBLISHED,
)
from ci_build.rocm.rocm_request import (
    DnfRepository,
    RocmRequest,
    check_place,
    check_request,
)
from ci_build.wheelset.jax_releases import complete_release, default_release
from ci_build.wheelset.output_dir import check_output_dir
from ci_build.wheelset.wheel_request import WheelSetRequest
from core.defaults import defaults
from core.errors import RequestError
from core.model import BuildRequest, GfxTarget, KernelRequest, Payload, RocmVersion
from core.process import HostRunner
from core.report import Reporter
from core.rocm_releases import published_rocm, rocm_extras
from core.targets import ALL, expand, is_all, requested
from core.units import parse_url
from wheelkit.recipe_base import requires_python
from wheelkit.repair.platform_tags import AUTO, PLATFORM, glibc_of

if TYPE_CHECKING:  # At run time, it would load requests.
    from core.http.client import Connect


_KERNEL_ROCM = ("rocm_version", "no_rocm_version_extra")
"""Options about the ROCm in the version of the kernel wheel."""
LINKS_HINT = (
    "Give folders with wheels, or http or https pages that link to wheels, with commas"
    " between them."
)


def wheel_set_request(
    settings: Settings,
    reporter: Reporter,
    runner: HostRunner,
    connect: Connect,
) -> WheelSetRequest:
    """Return the complete request for a wheel set, and warn about options without effect.

    Raises:
        RequestError: options contradict each other, name something that does not exist,
            or the set cannot be written.
    """
    from_source = settings.get("payload").value == Payload.SOURCE
    if from_source:
        settings = settings.with_defaults(source_defaults(settings))
    check_output_dir(Path(settings.text("out")))
    targets: tuple[GfxTarget, ...] = ()
    if any(map(settings.given, ("therock", "therock_index_url", "rocm_version"))):
        # The selection of a ROCm may use the network, so all other contradictions are
        # reported before.
        unknown = Setting(value="0.0", origin="not known yet")
        expected, _ = build_request(settings.with_defaults({"rocm_version": unknown}))
        targets = expected.targets or expand(ALL)
    rocm = find_rocm(
        settings, reporter, runner, connect, use_amd=from_source, targets=targets
    )
    if rocm is not None and from_source:
        settings = settings.with_defaults(rocm_defaults(settings, rocm))
        if not settings.text("rocm_version"):
            check_place(rocm.source)
    build, warnings = build_request(settings)
    if not settings.given("jax_version"):
        reporter.line(f"jax {build.jax_version}: {jax_setting(settings).origin}")
    for text in warnings:
        reporter.warning(text)
    if rocm is not None:
        targets = build.targets or () if build.payload is Payload.SOURCE else ()
        rocm = replace(rocm, version=str(build.rocm_version), targets=targets)
        check_request(rocm)
        if isinstance(rocm.source, DnfRepository):
            _check_container(build, rocm)
    elif build.payload is Payload.SOURCE:
        raise RequestError(
            "A build from source needs a ROCm.",
            hint=(
                "Give --therock-path, --therock, or the --rocm-version of a release or"
                " nightly; or --payload=published."
            ),
        )
    hash_rocm = settings.flag("hash_rocm")
    if hash_rocm and not rocm_extras(build.rocm_version, build.targets):
        raise RequestError(
            f"--hash-rocm: AMD has no wheels of ROCm {build.rocm_version} for the targets.",
            hint="Omit --hash-rocm.",
        )
    manifest = settings.get("rocm_manifest").value
    return WheelSetRequest(
        build=build,
        rocm=rocm,
        rocm_manifest=None if manifest is None else Path(str(manifest)),
        storage=rocm_storage(settings),
        registry=settings.text("image_registry"),
        out=Path(settings.text("out")),
        cache=settings.cache_dir,
        hash_rocm=hash_rocm,
        dry_run=settings.flag("dry_run"),
    )


def _check_container(build: BuildRequest, rocm: RocmRequest) -> None:
    """Refuse a build without a new builder image, in which dnf installs the ROCm."""
    if build.source is None:
        raise RequestError(
            "--rocm-lock has a ROCm that dnf installed, which"
            f" --payload={build.payload} does not use.",
            hint="Give --rocm-version, or another lock.",
        )
    container = build.source.container
    option = "--builder-image" if container.image else ""
    if container.host:
        option = "--host"
    if option:
        raise RequestError(
            f"--rocm-version={rocm.version} without a ROCm is installed in a new"
            f" builder image, not with {option}.",
            hint=f"Give --therock-path=/opt/rocm, or omit {option}.",
        )


def kernels_request(settings: Settings) -> tuple[BuildRequest, str]:
    """Return the request of `ci_build kernels build`, and the kernel wheel's version.

    Raises:
        RequestError: options contradict each other.
    """
    # Start-up time: only this command needs it.
    from kernels.api import wheel_version

    implied = {"kernels": True, "payload": Payload.PUBLISHED.value}
    origin = "ci_build kernels"
    settings = settings.with_defaults(
        {name: Setting(value=value, origin=origin) for name, value in implied.items()}
    )
    request, _ = build_request(settings, all_targets=expand(ALL))
    assert request.kernels is not None
    if request.kernels.toolchain == "pypi":
        text = "needs --kernel-rocm: other wheels depend on no ROCm."
        Problems(
            settings.objections(filter(settings.typed, _KERNEL_ROCM), text)
        ).refuse()
    return request, wheel_version(
        request, every_target=is_all(settings.text("targets"))
    )


def build_request(
    settings: Settings,
    *,
    all_targets: tuple[GfxTarget, ...] | None = None,
) -> tuple[BuildRequest, tuple[str, ...]]:
    """Return the build request of a wheel set, and warnings about options without effect.

    Args:
        all_targets: targets that `all` selects with published wheels; None for the
            targets of these wheels.

    Raises:
        RequestError: options contradict each other; the message names every
            contradiction.
    """
    payload = settings.choice("payload", Payload)
    problems = Problems(rocm_problems(settings))
    jax_version = problems.read(lambda: _jax_version(settings, payload))
    if payload is Payload.PUBLISHED:
        if jax_version and not settings.given("rocm_version"):
            settings = (
                problems.read(lambda: _with_proven_rocm(settings, jax_version))
                or settings
            )
        text = "belongs to a build from source and contradicts --payload=published."
        problems.add(*settings.objections(REFUSED_WITH_PUBLISHED, text))
        typed = filter(settings.typed, CONTAINER_OPTIONS)
        problems.add(
            *settings.objections(
                typed,
                "applies to a container, but --payload=published uses no container.",
            )
        )
    else:
        problems.add(*source_problems(settings))
    rocm = settings.get("rocm_version")
    if rocm.value is None and payload is not Payload.PUBLISHED:
        problems.add(
            "--rocm-version is missing; only --payload=published has a default."
        )
    kernels, kernel_problems = _kernels(settings)
    problems.add(*kernel_problems)
    pythons = problems.read(lambda: chosen_pythons(settings))
    if jax_version and pythons:
        pythons = problems.read(lambda: _pythons_of(jax_version, pythons, settings))
    source = None
    if payload is Payload.SOURCE:
        source = source_request(settings, jax_version, problems)
    spec = settings.text("targets")
    published = payload is Payload.PUBLISHED
    every = published and is_all(spec)
    # Kernels alone (`all_targets`) contain no XLA.
    refuses = published and all_targets is None
    targets = problems.read(
        lambda: all_targets if every else requested(spec, published=refuses)
    )
    post = settings.given("wheel_post_release")
    post_release = (
        problems.read(lambda: settings.positive("wheel_post_release")) if post else None
    )
    platform_tag = problems.read(lambda: chosen_platform(settings))
    find_links = problems.read(lambda: _find_links(settings))
    problems.refuse()
    if source is not None and source.one_target:
        targets = (targets or ())[:1]
        pythons = pythons[:1]
    request = BuildRequest(
        payload=payload,
        jax_version=jax_version,
        rocm_version=RocmVersion(text=str(rocm.value)),
        python_versions=pythons,
        targets=targets,
        rocm_version_extra=not settings.flag("no_rocm_version_extra"),
        post_release=post_release,
        strip=not settings.flag("no_strip"),
        platform_tag=platform_tag or "",
        source=source,
        kernels=kernels,
        find_links=find_links,
    )
    if payload is Payload.PUBLISHED and settings.given("compiler"):
        return request, (
            "--compiler has no effect with --payload=published: nothing is compiled.",
        )
    return request, ()


def _with_proven_rocm(settings: Settings, jax_version: str) -> Settings:
    """Return settings whose ROCm is that of the published wheels.

    Raises:
        RequestError: the ROCm of the release is unknown or contradictory.
    """
    rocm = Setting(
        value=published_rocm(jax_version),
        origin=f"published wheels of jax {jax_version}",
    )
    return settings.with_defaults({"rocm_version": rocm})


def _kernels(settings: Settings) -> tuple[KernelRequest | None, list[str]]:
    """Return the request for kernels, and the contradictions of its options."""
    if not settings.flag("kernels"):
        return None, settings.objections(NEEDS_KERNELS, "needs --kernels.")
    rocm = settings.text("kernel_rocm")
    request = KernelRequest(
        modules=split_list(settings.get("kernel_modules").value),
        toolchain="rocm" if rocm else "pypi",
        rocm=rocm,
        source=settings.text("aiter_source"),
        require=split_list(settings.get("require").value),
        allow_partial=settings.flag("allow_partial"),
        attention=settings.text("attention") or ("common" if rocm else "asm"),
        instances=settings.text("kernel_instances"),
    )
    problems = []
    if request.attention != "asm" and request.toolchain == "pypi":
        problems.append(f"--attention={request.attention} needs --kernel-rocm.")
    if request.instances and request.toolchain == "pypi":
        problems.append("--kernel-instances needs --kernel-rocm.")
    if request.instances and not request.allow_partial:
        problems.append(
            "--kernel-instances leaves kernels out, so it needs --allow-partial."
        )
    try:
        re.compile(request.instances)
    except re.error as error:
        problems.append(f"--kernel-instances is not a regular expression: {error}.")
    return request, problems


def chosen_platform(settings: Settings) -> str:
    """Return the platform tag of the wheels without the machine, or `auto`.

    Raises:
        RequestError: the tag is not manylinux_2_28 or newer.
    """
    setting = settings.get("platform_tag")
    tag = str(setting.value)
    lowest = PLATFORM.removesuffix("_x86_64")
    if tag != AUTO and (glibc_of(tag) or 0) < (glibc_of(lowest) or 0):
        raise RequestError(
            f"{setting.origin} is neither auto nor {lowest} or newer: {tag!r}.",
            hint="Write it like manylinux_2_31.",
        )
    return tag


def _find_links(settings: Settings) -> tuple[str, ...]:
    """Return the folders, as absolute paths, and URLs of `--find-links`.

    Raises:
        RequestError: a folder cannot be read, or a URL is not one of a page or has
            credentials.
    """
    setting = settings.get("find_links")
    found = []
    for place in split_list(setting.value):
        if "://" not in place:
            if not (Path(place).is_dir() and os.access(place, os.R_OK | os.X_OK)):
                raise RequestError(
                    f"{setting.origin}: {place} is not a folder that can be read.",
                    hint=LINKS_HINT,
                )
            found.append(str(Path(place).absolute()))
            continue
        parts = parse_url(place, setting.origin)
        if parts.scheme not in ("http", "https"):
            raise RequestError(
                f"{setting.origin} is not the URL of a page: {place}.", hint=LINKS_HINT
            )
        if (
            "@" in parts.netloc
        ):  # wheels.json records the URL, and other users can read the arguments of pip
            raise RequestError(
                f"{setting.origin} has a user or a password in its URL.",
                hint="Use a netrc file.",
            )
        found.append(place)
    return tuple(found)


def _jax_version(settings: Settings, payload: Payload) -> str:
    setting = jax_setting(settings)
    try:
        return complete_release(str(setting.value), payload)
    except InvalidVersion as error:
        raise RequestError(
            f"{setting.origin} {setting.value!r} is not a version.",
            hint="Write it like 0.10.2.",
        ) from error


def jax_setting(settings: Settings) -> Setting:
    """Return the release of jax; its origin is the reason if no option names it."""
    setting = settings.get("jax_version")
    if setting.value is not None:
        return setting
    payload = settings.choice("payload", Payload)
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    pythons: tuple[str, ...] = (
        running if running in supported_pythons() else supported_pythons()[-1],
    )
    if settings.given("python_versions"):
        pythons = split_list(settings.text("python_versions"))
    rocm = settings.text("rocm_version") if payload is Payload.SOURCE else ""
    release, reason = default_release(payload, pythons, rocm)
    return Setting(value=release, origin=reason)


def chosen_pythons(settings: Settings) -> tuple[str, ...]:
    """Return the requested Pythons, oldest first.

    Raises:
        RequestError: a Python is not supported, or none was given.
    """
    supported = supported_pythons()
    if not settings.given("python_versions") and "release_local" in settings.tables:
        return this_python_and_one_more(
            supported, f"{sys.version_info.major}.{sys.version_info.minor}"
        )
    setting = settings.get("python_versions")
    chosen = split_list(str(setting.value))
    require_known_pythons(chosen, setting.origin)
    return tuple(version for version in supported if version in chosen)


def supported_pythons() -> list[str]:
    """Return the supported Python versions such as 3.12, oldest first."""
    return list(defaults()["pythons"]["supported"])


def require_known_pythons(versions: Sequence[str], origin: str) -> None:
    """Check that a list of Python versions is not empty and that all versions are supported.

    Args:
        origin: option that the versions come from.

    Raises:
        RequestError: a version is not supported, or the list is empty.
    """
    unknown = [version for version in versions if version not in supported_pythons()]
    if unknown or not versions:
        hint = f"Give some of the supported versions: {', '.join(supported_pythons())}."
        raise RequestError(
            f"{origin} has unsupported versions: {', '.join(unknown) or 'none given'}.",
            hint=hint,
        )


def _pythons_of(
    jax_version: str, pythons: tuple[str, ...], settings: Settings
) -> tuple[str, ...]:
    """Return the requested Pythons that the JAX release supports.

    Raises:
        RequestError: an explicitly requested Python is not supported.
    """
    supported = requires_python(jax_version)
    good = tuple(python for python in pythons if python in SpecifierSet(supported))
    if not good or (settings.given("python_versions") and good != pythons):
        raise RequestError(
            f"jax {jax_version} needs Python {supported}, but"
            f" {settings.get('python_versions').origin} requests"
            f" {', '.join(python for python in pythons if python not in good)}.",
            hint="Omit these versions, or build an older --jax-version.",
        )
    return good


def this_python_and_one_more(supported: list[str], current: str) -> tuple[str, ...]:
    """Return the running Python and the next newer supported one, else the next older one.

    If the running Python is not supported, return the two newest supported ones.
    """
    if current not in supported:
        return tuple(supported[-2:])
    at = supported.index(current)
    return tuple(
        supported[at : at + 2] if at + 1 < len(supported) else supported[at - 1 :]
    )
