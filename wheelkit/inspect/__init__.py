"""Inspection of wheels: facts, rules, findings and reports."""
