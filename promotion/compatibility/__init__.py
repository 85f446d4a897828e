"""Compatibility tables of JAX and ROCm, from the evidence of promoted sets."""
