"""Unit tests: kernels."""
