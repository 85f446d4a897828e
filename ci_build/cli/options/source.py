"""Settings of a build from source become a SourceRequest here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from ci_build.cli.options.rocm import build_job_defaults
from ci_build.cli.options.settings import Setting, Settings
from core.errors import RequestError
from core.source_request import ActionCache, Checkout, Compiler, Container, Credentials, Remote, SourceRequest
from core.units import check_engine_size

_ONLY_WITH_RBE = ("rbe_endpoint", "no_rbe_fallback", "rbe_platform", "rbe_jobs")
_CREDENTIALS = ("rbe_ca", "rbe_cert", "rbe_key", "rbe_credential_helper", "rbe_bazelrc")
_ONLY_IN_CONTAINER = (
    "builder_image",
    "base_docker",
    "container_engine",
    "container_network",
    "container_memory",
    "container_shm_size",
)


def source_request(settings: Settings, jax_version: str, *tables: str) -> SourceRequest:
    """What the build is asked for, without what only the folders and the ROCm themselves can tell.

    Args:
        settings: without `source_problems`.

    Raises:
        RequestError: what that release of jax cannot do, all of it at once.
    """
    from ci_build.build.source.pins import Kind, interface_for, pins_for, releases

    problems = []
    interface = interface_for(jax_version)
    compiler = _compiler(settings.get("compiler", *tables))
    if compiler not in interface.compilers:
        problems.append(f"--compiler={compiler}: jax {jax_version} is built by {', '.join(interface.compilers)} only.")
    if not settings.given("jax_source_dir") and pins_for(jax_version) is None:
        problems.append(
            f"There are no pinned sources of jax {jax_version}, only of {', '.join(releases())}: give --jax-source-dir."
        )
    elif pins_for(jax_version) is None and interface.kind is Kind.ROCM_JAX:
        problems.append(f"There are no pinned sources of jax {jax_version}, and rocm-jax builds its plugin.")
    if problems:
        raise RequestError(" ".join(problems), hint="See `ci_build dist_wheels --help`.")
    one_target = settings.flag("one_target")
    return SourceRequest(
        compiler=compiler,
        sources=_sources(settings, jax_version, *tables),
        xla="dir" if settings.given("xla_source_dir") else str(settings.get("xla", *tables).value),
        jaxlib=settings.given("jax_source_dir") and not one_target,
        container=_container(settings, *tables),
        remote=_remote(settings, interface.rbe_platform, *tables),
        credentials=Credentials(
            **{name.removeprefix("rbe_"): _absolute(settings.get(name).value) for name in _CREDENTIALS}
        ),
        cache=ActionCache(
            remote=str(settings.get("remote_cache").value or ""),
            disk=_absolute(settings.get("disk_cache").value),
            read_only=settings.flag("cache_read_only"),
        ),
        one_target=one_target,
        clang=str(settings.get("clang_path").value or ""),
    )


def source_defaults(settings: Settings) -> Mapping[str, Setting]:
    """Return the release of the jax folder, and the ROCm of an internal build job."""
    from ci_build.build.source.sources import release_of

    found = dict(build_job_defaults(settings))
    given = settings.get("jax_source_dir").value
    if given and (folder := Path(str(given))).is_dir():
        found["jax_version"] = Setting(value=release_of(folder), origin=f"{folder}/jax/version.py")
    return found


def _compiler(setting: Setting) -> Compiler:
    """From the environment comes any word: only the command line was checked before."""
    try:
        return Compiler(str(setting.value))
    except ValueError as error:
        raise RequestError(
            f"{setting.origin} is {setting.value!r}.", hint=f"Known are {', '.join(Compiler)}."
        ) from error


def source_problems(settings: Settings) -> list[str]:
    """What contradicts what in the options of a build from source, whichever the release of jax."""
    from ci_build.build.source.pins import COMMIT

    problems = []
    if settings.given("xla") and settings.given("xla_source_dir"):
        problems.append("--xla and --xla-source-dir both name an XLA.")
    xla = settings.get("xla").value
    if xla is not None and xla not in ("pin", "head") and COMMIT.fullmatch(str(xla)) is None:
        problems.append(f"--xla is {xla!r}, which is neither pin, head nor a whole commit (40 hexadecimal digits).")
    problems += [
        f"{settings.get(name).origin} has no use without --rbe."
        for name in _ONLY_WITH_RBE
        if settings.given(name) and not settings.flag("rbe")
    ]
    problems += [
        f"{settings.get(name).origin} has no use without --rbe or --remote-cache."
        for name in _CREDENTIALS
        if settings.given(name) and not (settings.flag("rbe") or settings.given("remote_cache"))
    ]
    if settings.flag("rbe") and not (settings.given("rbe_endpoint") or settings.given("rbe_bazelrc")):
        problems.append("--rbe needs to know the executors: --rbe-endpoint or --rbe-bazelrc.")
    if settings.given("rbe_cert") != settings.given("rbe_key"):
        problems.append("--rbe-cert and --rbe-key go together.")
    if settings.flag("rbe") and urlsplit(str(settings.get("remote_cache").value or "")).scheme in ("http", "https"):
        problems.append("--rbe and an HTTP --remote-cache do not go together in Bazel; give a cache that speaks gRPC.")
    if settings.flag("cache_read_only") and not (settings.given("remote_cache") or settings.given("disk_cache")):
        problems.append("--cache-read-only has no use without --remote-cache or --disk-cache.")
    if settings.flag("host"):
        problems += [
            f"{settings.get(name).origin} is of a container, and --host wants none."
            for name in _ONLY_IN_CONTAINER
            if settings.given(name) and settings.get(name).origin.startswith("--")
        ]
    elif settings.given("clang_path") and not str(settings.get("clang_path").value).startswith("/"):
        problems.append("--clang-path is a path in the builder image, and has to be absolute.")
    if settings.given("builder_image") and settings.given("base_docker"):
        problems.append("--base-docker is what a builder image is built on, and --builder-image names a finished one.")
    problems += _secret_problems(settings)
    problems += [
        f"{settings.get(name).origin}: {settings.get(name).value} is not a folder."
        for name in ("xla_source_dir", "jax_source_dir")
        if settings.given(name) and not Path(str(settings.get(name).value)).is_dir()
    ]
    return problems


def _secret_problems(settings: Settings) -> list[str]:
    """Secrets where everybody could read them, and files of secrets that are not there."""
    problems = [
        f"{settings.get(name).origin} has a user or a password in its URL; give them in a file with --rbe-bazelrc."
        for name in ("remote_cache", "rbe_endpoint")
        if "@" in urlsplit(str(settings.get(name).value or "")).netloc
    ]
    mirror = urlsplit(str(settings.get("source_mirror").value or ""))
    if mirror.password is not None or (mirror.scheme in ("http", "https") and "@" in mirror.netloc):
        # wheels.json names what everything was fetched from, and git's arguments can be read by all.
        problems.append("--source-mirror has a user or a password in its URL; git has credential helpers for them.")
    problems += [
        f"{settings.get(name).origin}: {settings.get(name).value} is not a file."
        for name in _CREDENTIALS
        if settings.given(name) and not Path(str(settings.get(name).value)).is_file()
    ]
    helper = settings.get("rbe_credential_helper").value
    if helper and Path(str(helper)).is_file() and not os.access(str(helper), os.X_OK):
        problems.append(f"--rbe-credential-helper: {helper} is not a program: it cannot be executed.")
    return problems


def _sources(settings: Settings, jax_version: str, *tables: str) -> tuple[Checkout, ...]:
    """The trees of the build; those of folders have no commit yet."""
    from ci_build.build.source.pins import Kind, interface_for, pins_for, repository_url

    interface, pins = interface_for(jax_version), pins_for(jax_version)
    mirror = str(settings.get("source_mirror", *tables).value or "")
    found = []
    if interface.kind is Kind.ROCM_JAX and pins is not None:
        found.append(Checkout(name="rocm-jax", url=repository_url("rocm-jax", mirror), commit=pins.rocm_jax))
    if settings.given("jax_source_dir"):
        found.append(Checkout(name="jax", commit="", folder=_absolute(settings.get("jax_source_dir").value)))
    elif interface.kind is Kind.JAX and pins is not None:
        found.append(Checkout(name="jax", url=repository_url("jax", mirror), commit=pins.jax))
    xla = str(settings.get("xla", *tables).value)
    if settings.given("xla_source_dir"):
        found.append(Checkout(name="xla", commit="", folder=_absolute(settings.get("xla_source_dir").value)))
    elif xla != "pin":
        url = repository_url(interface.xla_repository, mirror)
        found.append(Checkout(name="xla", url=url, commit="HEAD" if xla == "head" else xla))
    return tuple(found)


def _container(settings: Settings, *tables: str) -> Container:
    return Container(
        host=settings.flag("host"),
        engine=str(settings.get("container_engine", *tables).value or ""),
        image=str(settings.get("builder_image").value or ""),
        base=str(settings.get("base_docker").value or ""),
        network=str(settings.get("container_network", *tables).value),
        memory=container_size(settings, "container_memory", *tables),
        shm_size=container_size(settings, "container_shm_size", *tables),
    )


def container_size(settings: Settings, name: str, *tables: str) -> str:
    """A limit of containers, checked before anything is fetched; empty when nobody says one.

    Raises:
        RequestError: it is no size.
    """
    setting = settings.get(name, *tables)
    return check_engine_size(str(setting.value), setting.origin) if setting.value else ""


def _remote(settings: Settings, platform: str, *tables: str) -> Remote | None:
    if not settings.flag("rbe"):
        return None
    given = str(settings.get("rbe_platform").value or platform)
    return Remote(
        endpoint=_endpoint(settings),
        platform="" if given == "none" else given,
        jobs=_jobs(settings, *tables),
        fallback=not settings.flag("no_rbe_fallback"),
    )


def _endpoint(settings: Settings) -> str:
    endpoint = str(settings.get("rbe_endpoint").value or "")
    if endpoint and urlsplit(endpoint).scheme not in ("grpc", "grpcs", "unix"):
        raise RequestError(
            f"{settings.get('rbe_endpoint').origin} is {endpoint!r}.",
            hint="Give a URL like grpcs://host:443 or grpc://127.0.0.1:50051.",
        )
    return endpoint


def _jobs(settings: Settings, *tables: str) -> int:
    setting = settings.get("rbe_jobs", *tables)
    jobs = str(setting.value)
    if not jobs.isdecimal() or int(jobs) < 1:
        raise RequestError(f"{setting.origin} is {jobs!r}.", hint="Give a whole number from 1.")
    return int(jobs)


def source_readings(settings: Settings, *tables: str) -> Iterator[Callable[[], object]]:
    """What reads each value that can be read without the others, and raises RequestError where it cannot."""
    yield partial(_compiler, settings.get("compiler", *tables))
    yield partial(_endpoint, settings)
    yield partial(_jobs, settings, *tables)
    yield from (partial(container_size, settings, name, *tables) for name in ("container_memory", "container_shm_size"))


def _absolute(value: object) -> str:
    return str(Path(str(value)).absolute()) if value else ""
