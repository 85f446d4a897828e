"""GPU code in ELF files: bundles, fat binaries, code objects."""
