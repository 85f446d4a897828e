# As jax has it; this XLA lies beside it and never was anybody's commit.
XLA_COMMIT = "0000000000000000000000000000000000000001"
