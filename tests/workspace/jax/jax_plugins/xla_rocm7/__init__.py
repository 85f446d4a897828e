"""Finds the plugin."""
