"""Ways to break the published wheels, and the table of which gate catches each."""
