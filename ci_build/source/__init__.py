"""Compiling from source: the trees, where the build runs (a container or this machine), and carrying it out."""
