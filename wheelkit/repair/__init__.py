"""Repair of wheels: exact targets, true tags, stripped libraries, correct metadata."""
