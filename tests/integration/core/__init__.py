"""Integration tests: core."""
