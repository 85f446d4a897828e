"""The CPU part."""
