"""Reading, checking and rewriting wheel archives."""
