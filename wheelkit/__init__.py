"""Wheels as files: archives, ELF, GPU code, repair and inspection."""
