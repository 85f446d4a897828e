"""Unit tests: benchmarks."""
