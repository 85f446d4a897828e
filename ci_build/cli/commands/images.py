"""The command `ci_build images`."""

from __future__ import annotations

import cloup

from ci_build.cli.common import LazyGroup

_SECTIONS = {
    "Images": {
        "build": ("image_build", "Build the builder image, or the image of a set."),
        "test": ("image_test", "Run an image's own test, or a command in an image."),
        "update": ("image_update", "Update the digests in docker/images.toml."),
    },
}


@cloup.group(cls=LazyGroup, sections=_SECTIONS)
def images() -> None:
    """Build and test images; update the pins of docker/images.toml."""
