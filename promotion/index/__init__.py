"""A released index: ledger, pages and their maintenance."""
