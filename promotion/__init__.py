"""Staging, gating, promotion and indexing of wheel sets, independent of how the wheels are built."""
