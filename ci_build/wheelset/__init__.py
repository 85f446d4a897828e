"""Builds of wheel sets: plan, execution and the files of a set."""
