"""Wheel archives: reading, rewriting, ELF, fat binaries, repair, inspection.

Knows nothing of the pipeline: it imports only `ci_build.model` and `ci_build.errors`.
"""
