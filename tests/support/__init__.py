"""Fakes, builders and servers that tests share."""
