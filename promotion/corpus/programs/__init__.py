"""Programs of the corpus, one module for each group; they use only jax and the standard library.

The child process imports these modules under another package name, so they use relative
imports. The parent process never imports them: it parses the declarations (see
`declaration`) from the source.
"""
