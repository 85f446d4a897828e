"""Container images: their pins (docker/images.toml), their recipes, and the image that a build runs in."""

from ci_build.images.builder import ImageRequest, builder_image, image_request, planned_image
from ci_build.images.recipe import ContainerImage

__all__ = ["ContainerImage", "ImageRequest", "builder_image", "image_request", "planned_image"]
