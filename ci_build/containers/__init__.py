"""Commands in containers: the engine, rights and mounts, and the removal of orphaned containers."""
