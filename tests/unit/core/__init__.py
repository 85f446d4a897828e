"""Unit tests: core."""
