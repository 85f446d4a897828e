"""Checks of the package jax_aiter, run by pytest in an environment with jax (tests/integration/test_jax_aiter.py)."""
