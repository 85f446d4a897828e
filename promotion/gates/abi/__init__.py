"""The ABI gate."""
