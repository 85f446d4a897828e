"""The `jax-rocm{N}-plugin` wheel: its recipe, and the Python files that it contains (`payload/`)."""
