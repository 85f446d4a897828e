"""The table of gates: each fault that a gate must report, with the code of its finding."""
