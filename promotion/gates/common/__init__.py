"""Parts that several gates share."""
