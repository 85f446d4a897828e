"""The `jax-rocm{N}-plugin` wheel.

Its recipe, and the Python files that it contains (`payload/`).
"""
