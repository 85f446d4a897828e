"""Builds from source: source trees, Bazel commands and build environments."""
