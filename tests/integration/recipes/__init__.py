"""Integration tests: recipes."""
