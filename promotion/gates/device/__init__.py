"""Device gate.

JAX's own tests on GPUs, with a verdict for each test that separates test and machine
failures.
"""
