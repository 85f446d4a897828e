"""Corpus of the compile gate: JAX programs, descriptions of GPUs and expected failures."""
