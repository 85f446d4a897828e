"""Sessions of pytest under supervision: planning, running, watching."""
