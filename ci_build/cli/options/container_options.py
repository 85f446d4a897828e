"""Options of images and containers."""

from __future__ import annotations

from ci_build.cli.options.environment import gate_environment
from ci_build.cli.options.settings import Settings
from ci_build.release.release_request import ContainerSettings
from core.units import check_engine_size


def container_size(settings: Settings, name: str) -> str:
    """Return a size limit of containers; empty for no limit.

    Raises:
        RequestError: the value is not a size.
    """
    setting = settings.get(name)
    return (
        check_engine_size(str(setting.value), setting.origin) if setting.value else ""
    )


def container_settings(settings: Settings) -> ContainerSettings:
    """Return the settings of the container in which the gate device runs.

    Raises:
        RequestError: a setting is invalid.
    """
    return ContainerSettings(
        engine=settings.text("container_engine"),
        network=settings.text("container_network"),
        memory=container_size(settings, "container_memory"),
        shm_size=container_size(settings, "container_shm_size"),
        cache=settings.cache_dir,
        variables=gate_environment(),
    )
