"""The install gate."""
