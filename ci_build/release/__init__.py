"""Gating, staging and promotion for the command line."""
