"""Images: what they are made of (docker/images.toml), when they are built anew, and which one a build runs in."""

from ci_build.images.builder import ImageRequest, builder_image, image_request, planned_image
from ci_build.images.recipe import BuilderImage

__all__ = ["BuilderImage", "ImageRequest", "builder_image", "image_request", "planned_image"]
