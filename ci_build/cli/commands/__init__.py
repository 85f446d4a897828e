"""Commands of `ci_build`, one module each."""
