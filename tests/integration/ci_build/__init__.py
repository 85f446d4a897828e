"""Integration tests: ci_build."""
