"""Container images.

Their pins (docker/images.toml), their recipes, and the image that a build runs in.
"""
