"""Integration tests: kernels."""
