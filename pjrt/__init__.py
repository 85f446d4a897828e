"""The recipes of the `jax-rocm{N}` wheels, and the Python files of the pjrt wheel (`payload/`)."""
