"""The corpus of the compile gate: JAX programs, the GPUs that they are compiled for, and expected failures."""
