"""The command `ci_build images`."""

from __future__ import annotations

import cloup

from ci_build.cli.common import LazyGroup

_SECTIONS = {
    "Images": {
        "build": ("image_build", "Build images: manylinux, base or runtime."),
        "run": ("image_run", "Run a command or the image's own test in an image."),
        "test": ("image_run", "Build the images of a set and run their tests."),
    },
    "Pins": {
        "list": ("image_pins:list_pins", "List the pinned base images and files."),
        "update": ("image_pins:update", "Update the pinned digests."),
        "check": ("image_pins:check", "Check the pins and the Dockerfiles."),
    },
}


@cloup.group(cls=LazyGroup, sections=_SECTIONS)
def images() -> None:
    """Build, run and test images; list and update the pins of docker/images.toml."""
