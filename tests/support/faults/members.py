"""Extension modules of the plugin wheel."""

from __future__ import annotations

HYBRID, PRNG, RNN, SOLVER, SPARSE, TRITON = (
    f"jax_rocm7_plugin/_{name}.so" for name in ("hybrid", "prng", "rnn", "solver", "sparse", "triton")
)
