"""Staging, gating, promotion and indexing of wheel sets, independent of their build."""
