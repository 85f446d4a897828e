"""Faults of the published wheels, and the table of the gates that catch them."""
