"""Options of images and containers."""

from __future__ import annotations

from ci_build.cli.options.environment import gate_environment
from ci_build.cli.options.settings import Settings
from ci_build.containers.engine import check_engine, check_network
from ci_build.images.engine_images import check_reference
from ci_build.images.mirrors import parse_mirrors
from ci_build.release.release_request import ContainerSettings
from core.units import check_engine_size


def image_mirrors(settings: Settings) -> dict[str, str]:
    """Return registry or repository of images -> mirror.

    Raise RequestError for an invalid mirror.
    """
    return parse_mirrors(
        settings.text("image_mirror"), settings.get("image_mirror").origin
    )


def registry_problems(settings: Settings, *, pulls: bool, searches: bool) -> list[str]:
    """Return the objections to a registry or mirror on the command line that has no effect.

    Args:
        pulls: whether base images or named images may be pulled.
        searches: whether built images are searched in a registry or pushed to it.
    """
    problems = []
    if settings.typed("image_registry") and not searches:
        problems.append(
            "--image-registry has no effect: built images are neither searched nor pushed; "
            "give --image-mirror to pull base images from a mirror."
        )
    if settings.typed("image_mirror") and not pulls:
        problems.append("--image-mirror has no effect: no base image is pulled.")
    return problems


def container_size(settings: Settings, name: str) -> str:
    """Return a size limit of containers; empty for no limit.

    Raises:
        RequestError: the value is not a size.
    """
    setting = settings.get(name)
    return (
        check_engine_size(str(setting.value), setting.origin) if setting.value else ""
    )


def container_engine(settings: Settings) -> str:
    """Return the container engine; empty to detect it.

    Raises:
        RequestError: the value names no engine.
    """
    setting = settings.get("container_engine")
    return check_engine(str(setting.value or ""), setting.origin)


def container_network(settings: Settings) -> str:
    """Return the network of containers.

    Raises:
        RequestError: the value is not the name of a network.
    """
    setting = settings.get("container_network")
    return check_network(str(setting.value), setting.origin)


def check_images(settings: Settings) -> None:
    """Check the options that name an image.

    Raises:
        RequestError: no image can have this name.
    """
    for name in ("builder_image", "base_docker"):
        if settings.given(name):
            check_reference(settings.text(name), settings.get(name).origin)


def container_settings(settings: Settings) -> ContainerSettings:
    """Return the settings of the container in which the gate device runs.

    Raises:
        RequestError: a setting is invalid.
    """
    return ContainerSettings(
        engine=container_engine(settings),
        network=container_network(settings),
        memory=container_size(settings, "container_memory"),
        shm_size=container_size(settings, "container_shm_size"),
        cache=settings.cache_dir,
        mirrors=image_mirrors(settings),
        variables=gate_environment(),
    )
