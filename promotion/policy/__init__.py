"""Policies and verdicts."""
