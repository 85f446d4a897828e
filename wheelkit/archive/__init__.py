"""Wheel archives: reading, checking and rewriting."""
