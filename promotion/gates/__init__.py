"""Gates.

Each checks a staged set, never a build folder, and leaves evidence that names the set's
digest.
"""
