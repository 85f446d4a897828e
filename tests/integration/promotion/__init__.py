"""Integration tests: promotion."""
