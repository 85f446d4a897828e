"""The documentation site: pages of the repository, a reference generated from the program, and its publication."""
