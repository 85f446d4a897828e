"""ELF files: reading and editing in place."""
