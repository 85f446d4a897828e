"""The `jax-rocm{N}-plugin` wheel.

The Python files that it contains (`payload/`) and the reviewed list of its handlers.
"""
