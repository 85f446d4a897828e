"""The driver: turns a request into a wheel set on disk (`wheels.json` and the wheels beside it)."""
