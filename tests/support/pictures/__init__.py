"""The pictures of the documentation.

Terminals as SVG, pages of an index as PNG, all from real runs.

`python -m tests.support.pictures` makes them again. Tests compare the text of each with
what the program prints now.
"""
