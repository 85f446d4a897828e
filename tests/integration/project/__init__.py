"""Integration tests: project."""
