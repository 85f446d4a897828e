"""The coverage gate."""
