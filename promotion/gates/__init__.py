"""Gates: each takes a staged wheel set and leaves Evidence that names the set's digest."""
