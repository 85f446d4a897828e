"""The load gate."""
