"""Options of a build from source."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from ci_build.cli.options.container_options import container_args
from ci_build.cli.options.settings import Problems, Setting, Settings
from ci_build.images.image_builder import SEARCH
from ci_build.wheelset.source.pins import (
    COMMIT,
    BuildRepository,
    Interface,
    amd_commit,
    amd_releases,
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
    Checkout,
    Compiler,
    Container,
    Remote,
    SourceRequest,
)

_ONLY_IN_CONTAINER = (
    "builder_image",
    "base_docker",
    "image_registry",
    "container_engine",
    "container_args",
)


def source_request(
    settings: Settings,
    jax_version: str | None,
    problems: Problems,
) -> SourceRequest | None:
    """Return the options of a build from source.

    Args:
        settings: values of all options; `source_problems` reports their contradictions.
        jax_version: release of jax; None if the option is invalid.
        problems: receives every unreadable value, and every option that the release
            does not support.

    Returns:
        The request, which is valid if there are no problems; None if the release is
        invalid or too old.
    """
    compiler = problems.read(lambda: settings.choice("compiler", Compiler))
    endpoint = problems.read(lambda: _endpoint(settings))
    args = problems.read(lambda: container_args(settings))
    if not jax_version:
        return None
    interface = problems.read(lambda: interface_for(jax_version))
    if not interface:  # The release is older than every known build.
        return None
    problems.add(*_unsupported(settings, jax_version, interface, compiler))
    sources = _sources(settings, jax_version)
    one_target = settings.flag("one_target")
    remote = Remote(endpoint=endpoint)
    cache = settings.text("action_cache")
    host = settings.flag("host")
    container = Container(
        host=host,
        engine="" if host else settings.text("container_engine"),
        image=settings.text("builder_image"),
        base=settings.text("base_docker"),
        args=args,
    )
    return SourceRequest(
        compiler=compiler,
        sources=sources,
        xla="dir" if settings.given("xla_source_dir") else settings.text("xla"),
        jaxlib=settings.given("jax_source_dir") and not one_target,
        container=container,
        remote=remote if settings.flag("rbe") else None,
        bazelrc=_absolute(settings.text("rbe_bazelrc")),
        cache=cache if "://" in cache else _absolute(cache),
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
    amd = settings.text("jax_source") == "amd"
    if amd and not amd_commit(jax_version):
        yield (
            f"--jax-source=amd: no commit of ROCm/jax is known for jax {jax_version};"
            f" give one of {', '.join(amd_releases())}, or --jax-source-dir."
        )
    elif amd and settings.given("jax_source_dir"):
        yield "--jax-source and --jax-source-dir both name a jax."
    elif not settings.given("jax_source_dir") and pins_for(jax_version) is None:
        reason = unsupported(jax_version)
        why = f" ({reason})" if reason else ""
        yield (
            f"jax {jax_version} has no pinned sources{why}; give --jax-source-dir, or a"
            f" pinned version: {', '.join(releases())}."
        )
    elif pins_for(jax_version) is None and interface.kind is BuildRepository.ROCM_JAX:
        yield (
            f"jax {jax_version} needs pinned sources of rocm-jax, which builds its"
            " plugin; there are none."
        )


def source_defaults(settings: Settings) -> Mapping[str, Setting]:
    """Return defaults that other options imply.

    The release in `--jax-source-dir`, and the platform tag.
    """
    tag = defaults()["source"]["platform_tag"]
    found = {"platform_tag": Setting(value=tag, origin="defaults.toml [source]")}
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
        problems += settings.objections(
            ("rbe_endpoint",), "has no effect without --rbe."
        )
    elif not (settings.given("rbe_endpoint") or settings.given("rbe_bazelrc")):
        problems.append("--rbe needs --rbe-endpoint or --rbe-bazelrc.")
    cache = settings.text("action_cache")
    if settings.flag("rbe") and cache.startswith(("http://", "https://")):
        problems.append("--rbe contradicts an HTTP --action-cache; give a gRPC cache.")
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
    """Return the problems of credentials: credentials in URLs, and an unusable bazelrc."""
    problems = [
        f"{settings.get(name).origin} has a user or a password in its URL; give them in"
        " a file with --rbe-bazelrc."
        for name in ("action_cache", "rbe_endpoint")
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
    if settings.given("rbe_bazelrc"):
        origin = settings.get("rbe_bazelrc").origin
        bazelrc = Path(settings.text("rbe_bazelrc")).absolute()
        if not bazelrc.is_file():
            problems.append(f"{origin}: {bazelrc} is not a file.")
        elif not settings.flag("host") and not _is_own_folder(bazelrc.parent):
            problems.append(
                f"{origin}: the build's container gets the whole folder of {bazelrc};"
                " put the file and what it names into a folder of their own."
            )
    return problems


def _is_own_folder(folder: Path) -> bool:
    """Return whether a folder is neither the user's home nor one of the system."""
    home = os.path.expanduser("~")  # noqa: PTH111 - never raises
    return len(folder.parts) > 2 and folder != Path(home)


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
    elif settings.text("jax_source") == "amd":
        commit = amd_commit(jax_version)
        url = repository_url("amd-jax", mirror)
        found.append(Checkout(name="jax", url=url, commit=commit))
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
