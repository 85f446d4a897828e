"""Checks of the package jax_aiter, which `tests/integration/kernels/test_jax_aiter.py` runs beside jax."""
