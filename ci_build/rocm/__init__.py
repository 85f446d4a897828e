"""ROCm as it is installed: reading a tree."""
