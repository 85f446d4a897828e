"""Unit tests: promotion."""
