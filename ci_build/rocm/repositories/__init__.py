"""apt and dnf repositories as sources of a ROCm."""
