"""Integration tests: wheelkit."""
