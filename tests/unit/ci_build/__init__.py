"""Unit tests: ci_build."""
