"""Repair of wheels."""
