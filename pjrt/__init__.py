"""The `jax-rocm{N}-pjrt` wheel: its recipe, and the Python files that it contains (`payload/`)."""
