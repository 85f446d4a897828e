"""The image that a build from source runs in, and its pins (docker/images.toml)."""
