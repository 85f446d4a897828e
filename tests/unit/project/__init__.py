"""Unit tests: project."""
