"""Reading ELF files and editing them in place."""
