"""Nouns, errors, units, processes, reporting, files and HTTP for all packages above."""
