"""Kernel modules of `jax_aiter`: catalog, sources, toolchains, build and packing."""
