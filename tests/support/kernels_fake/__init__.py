"""Stand-ins for a GPU in tests of handlers: FakeHip, a HIP that records its calls, and a caller."""
