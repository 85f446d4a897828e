"""The kernel modules of `jax_aiter`: what there is, where it comes from, how it is built and packed."""
