"""Unit tests: wheelkit."""
