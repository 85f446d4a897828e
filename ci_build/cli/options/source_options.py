"""Options of a build from source."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from ci_build.cli.options.container_options import (
    container_size,
)
from ci_build.cli.options.rocm_options import build_job_defaults
from ci_build.cli.options.settings import Problems, Setting, Settings
from ci_build.images.manylinux_image import SEARCH
from ci_build.wheelset.source.pins import (
    COMMIT,
    BuildRepository,
    Interface,
    interface_for,
    pins_for,
    releases,
    repository_url,
    unsupported,
)
from ci_build.wheelset.source.source_checkouts import is_xla, local_mirror, release_of
from core.defaults import defaults
from core.errors import RequestError
from core.source_request import (
    ActionCache,
    Checkout,
    Compiler,
    Container,
    Credentials,
    Remote,
    SourceRequest,
)

_ONLY_WITH_RBE = ("rbe_endpoint", "no_rbe_fallback", "rbe_platform", "rbe_jobs")
_ONLY_IN_CONTAINER = (
    *(
        "builder_image",
        "base_docker",
        "image_registry",
        "container_engine",
    ),
    *("container_network", "container_memory", "container_shm_size"),
)
_CREDENTIALS = ("rbe_ca", "rbe_cert", "rbe_key", "rbe_credential_helper", "rbe_bazelrc")


def source_request(
    settings: Settings,
    jax_version: str | None,
    problems: Problems,
    *,
    accept_cached: bool = True,
) -> SourceRequest | None:
    """Return the options of a build from source.

    Args:
        settings: values of all options; `source_problems` reports their contradictions.
        jax_version: release of jax; None if the option is invalid.
        problems: receives every unreadable value, and every option that the release
            does not support.
        accept_cached: whether remote executors may use cached results.

    Returns:
        The request, which is valid if there are no problems; None if the release is
        invalid or too old.
    """
    compiler = problems.read(lambda: settings.choice("compiler", Compiler))
    endpoint = problems.read(lambda: _endpoint(settings))
    jobs = problems.read(lambda: settings.positive("rbe_jobs"))
    memory = problems.read(lambda: container_size(settings, "container_memory"))
    shm_size = problems.read(lambda: container_size(settings, "container_shm_size"))
    if not jax_version:
        return None
    interface = problems.read(lambda: interface_for(jax_version))
    if not interface:  # The release is older than every known build.
        return None
    problems.add(*_unsupported(settings, jax_version, interface, compiler))
    sources = _sources(settings, jax_version)
    problems.add(*_missing_mirrors(settings, sources))
    one_target = settings.flag("one_target")
    platform = settings.text("rbe_platform") or interface.rbe_platform
    remote = Remote(
        endpoint=endpoint,
        platform="" if platform == "none" else platform,
        jobs=jobs,
        fallback=not settings.flag("no_rbe_fallback"),
        accept_cached=accept_cached,
    )
    host = settings.flag("host")
    container = Container(
        host=host,
        engine="" if host else settings.text("container_engine"),
        image=settings.text("builder_image"),
        base=settings.text("base_docker"),
        network=settings.text("container_network"),
        memory=memory,
        shm_size=shm_size,
    )
    return SourceRequest(
        compiler=compiler,
        sources=sources,
        xla="dir" if settings.given("xla_source_dir") else settings.text("xla"),
        jaxlib=settings.given("jax_source_dir") and not one_target,
        container=container,
        remote=remote if settings.flag("rbe") else None,
        credentials=Credentials(
            **{
                name.removeprefix("rbe_"): _absolute(settings.text(name))
                for name in _CREDENTIALS
            }
        ),
        cache=ActionCache(
            remote=settings.text("remote_cache"),
            disk=_absolute(settings.text("disk_cache")),
            read_only=settings.flag("cache_read_only"),
        ),
        one_target=one_target,
        clang=settings.text("clang_path"),
        bazel=settings.text("bazel_path"),
    )


def _unsupported(
    settings: Settings, jax_version: str, interface: Interface, compiler: Compiler
) -> Iterator[str]:
    """Yield one sentence for each option that the release of jax does not support."""
    if compiler and compiler not in interface.compilers:
        yield (
            f"--compiler={compiler} cannot build jax {jax_version}; give"
            f" {', '.join(interface.compilers)}."
        )
    if not settings.given("jax_source_dir") and pins_for(jax_version) is None:
        known, why = (
            ", ".join(releases()),
            f" ({reason})" if (reason := unsupported(jax_version)) else "",
        )
        yield (
            f"jax {jax_version} has no pinned sources{why}; give --jax-source-dir, or a"
            f" pinned version: {known}."
        )
    elif pins_for(jax_version) is None and interface.kind is BuildRepository.ROCM_JAX:
        yield (
            f"jax {jax_version} needs pinned sources of rocm-jax, which builds its"
            " plugin; there are none."
        )


def source_defaults(settings: Settings) -> Mapping[str, Setting]:
    """Return defaults that other options imply.

    The release in `--jax-source-dir`, the ROCm of a build job.
    """
    found = dict(build_job_defaults(settings))
    found["platform_tag"] = Setting(
        value=defaults()["source"]["platform_tag"], origin="defaults.toml [source]"
    )
    given = settings.get("jax_source_dir").value
    if given and (folder := Path(str(given))).is_dir():
        found["jax_version"] = Setting(
            value=release_of(folder), origin=f"{folder}/jax/version.py"
        )
    return found


def source_problems(settings: Settings) -> list[str]:
    """Return contradictions between source build options, regardless of the jax."""
    problems = []
    if settings.given("xla") and settings.given("xla_source_dir"):
        problems.append("--xla and --xla-source-dir both name an XLA.")
    xla = settings.get("xla").value
    if (
        xla is not None
        and xla not in ("pin", "head")
        and COMMIT.fullmatch(str(xla)) is None
    ):
        problems.append(
            f"--xla is {xla!r}, which is neither pin, head nor a whole commit (40"
            " hexadecimal digits)."
        )
    if not settings.flag("rbe"):
        problems += settings.objections(_ONLY_WITH_RBE, "has no effect without --rbe.")
        if not settings.given("remote_cache"):
            problems += settings.objections(
                _CREDENTIALS, "has no effect without --rbe or --remote-cache."
            )
    elif not (settings.given("rbe_endpoint") or settings.given("rbe_bazelrc")):
        problems.append("--rbe needs --rbe-endpoint or --rbe-bazelrc.")
    if settings.given("rbe_cert") != settings.given("rbe_key"):
        problems.append("--rbe-cert and --rbe-key must be given together.")
    if settings.flag("rbe") and urlsplit(settings.text("remote_cache")).scheme in (
        "http",
        "https",
    ):
        problems.append("--rbe contradicts an HTTP --remote-cache; give a gRPC cache.")
    if settings.flag("cache_read_only") and not (
        settings.given("remote_cache") or settings.given("disk_cache")
    ):
        problems.append(
            "--cache-read-only has no effect without --remote-cache or --disk-cache."
        )
    if settings.flag("host"):
        typed = filter(settings.typed, _ONLY_IN_CONTAINER)
        problems += settings.objections(
            typed, "applies to a container, but --host uses no container."
        )
    else:
        searches = settings.text("builder_image") == SEARCH
        if settings.typed("image_registry") and not searches:
            problems.append(
                "--image-registry has no effect without --builder-image=search."
            )
        problems += settings.objections(
            ("bazel_path",), "has no effect without --host."
        )
        if settings.given("clang_path") and not settings.text("clang_path").startswith(
            "/"
        ):
            problems.append(
                "--clang-path is a path in the builder image, and must be absolute."
            )
    if settings.given("builder_image") and settings.given("base_docker"):
        problems.append(
            "--base-docker is the base of a new builder image, but --builder-image"
            " names a finished one."
        )
    problems += _secret_problems(settings)
    return [*problems, *_folder_problems(settings)]


def _folder_problems(settings: Settings) -> Iterator[str]:
    """Yield the problems of folders with sources."""
    for name in ("xla_source_dir", "jax_source_dir"):
        if settings.given(name) and not (folder := Path(settings.text(name))).is_dir():
            yield f"{settings.get(name).origin}: {folder} is not a folder."
        elif settings.given(name) and name == "xla_source_dir" and not is_xla(folder):
            yield (
                f"{settings.get(name).origin}: {folder} is not an XLA tree; give the"
                " root of a checkout."
            )
    mirror = local_mirror(settings.text("source_mirror"))
    if mirror is not None and not mirror.is_dir():
        yield f"{settings.get('source_mirror').origin}: {mirror} is not a folder."


def _secret_problems(settings: Settings) -> list[str]:
    """Return the problems of credentials: credentials in URLs, and missing or unusable files."""
    problems = [
        f"{settings.get(name).origin} has a user or a password in its URL; give them in"
        " a file with --rbe-bazelrc."
        for name in ("remote_cache", "rbe_endpoint")
        if "@" in urlsplit(settings.text(name)).netloc
    ]
    mirror = urlsplit(settings.text("source_mirror"))
    if mirror.password is not None or (
        mirror.scheme in ("http", "https") and "@" in mirror.netloc
    ):
        # wheels.json records the URL, and other users can read the arguments of git.
        problems.append(
            "--source-mirror has a user or a password in its URL; use a credential"
            " helper of git."
        )
    problems += [
        f"{settings.get(name).origin}: {settings.text(name)} is not a file."
        for name in _CREDENTIALS
        if settings.given(name) and not Path(settings.text(name)).is_file()
    ]
    helper = settings.text("rbe_credential_helper")
    if helper and Path(helper).is_file() and not os.access(helper, os.X_OK):
        problems.append(f"--rbe-credential-helper: {helper} is not executable.")
    return problems


def _sources(settings: Settings, jax_version: str) -> tuple[Checkout, ...]:
    """Return the source trees of the build; trees in folders have no commit yet."""
    interface = interface_for(jax_version)
    pins = pins_for(jax_version)
    mirror = settings.text("source_mirror")
    if local_mirror(mirror) is not None and "://" not in mirror:
        mirror = _absolute(mirror)  # git would start from the folder of the checkout
    found = []
    if interface.kind is BuildRepository.ROCM_JAX and pins is not None:
        found.append(
            Checkout(
                name="rocm-jax",
                url=repository_url("rocm-jax", mirror),
                commit=pins.rocm_jax,
            )
        )
    if settings.given("jax_source_dir"):
        found.append(
            Checkout(
                name="jax", commit="", folder=_absolute(settings.text("jax_source_dir"))
            )
        )
    elif interface.kind is BuildRepository.JAX and pins is not None:
        found.append(
            Checkout(name="jax", url=repository_url("jax", mirror), commit=pins.jax)
        )
    xla = settings.text("xla")
    if settings.given("xla_source_dir"):
        found.append(
            Checkout(
                name="xla", commit="", folder=_absolute(settings.text("xla_source_dir"))
            )
        )
    elif xla != "pin":
        url = repository_url(interface.xla_repository, mirror)
        found.append(
            Checkout(name="xla", url=url, commit="HEAD" if xla == "head" else xla)
        )
    return tuple(found)


def _missing_mirrors(settings: Settings, sources: Sequence[Checkout]) -> Iterator[str]:
    """Yield one sentence for each repository that the folder of `--source-mirror` lacks."""
    mirror = local_mirror(settings.text("source_mirror"))
    if mirror is None or not mirror.is_dir():
        return
    for checkout in sources:
        # git also finds a folder whose name ends with .git.
        folder = local_mirror(checkout.url)
        if folder is not None and not any(
            Path(f"{folder}{ending}").is_dir() for ending in ("", ".git")
        ):
            yield f"{settings.get('source_mirror').origin} has no repository {folder}."


def _endpoint(settings: Settings) -> str:
    endpoint = settings.text("rbe_endpoint")
    if endpoint and urlsplit(endpoint).scheme not in ("grpc", "grpcs", "unix"):
        raise RequestError(
            f"{settings.get('rbe_endpoint').origin} is invalid: {endpoint!r}.",
            hint="Give a URL like grpcs://host:443 or grpc://127.0.0.1:50051.",
        )
    return endpoint


def _absolute(path: str) -> str:
    return str(Path(path).absolute()) if path else ""
