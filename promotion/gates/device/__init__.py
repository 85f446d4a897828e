"""The device gate: JAX's own tests on GPUs, with a verdict on each that tells a failure from the weather."""
