"""The programs: a module for each group, jax and the standard library only.

The child process imports these modules under another package name, so they import each other relatively. The parent
never imports them: it reads the declarations (see `declaration`) from the source.
"""
