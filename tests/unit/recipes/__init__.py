"""Unit tests: recipes."""
