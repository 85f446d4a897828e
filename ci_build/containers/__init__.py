"""Commands in containers: which engine there is, rights and mounts, and what becomes of containers left behind."""
