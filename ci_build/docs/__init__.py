"""The documentation site.

Pages of the repository, a reference generated from the program, and its publication.
"""
