"""Wheel files: archives, ELF libraries, GPU code, repair and inspection."""
