"""Repeatable measurements: ratios to stock tools within one run."""
