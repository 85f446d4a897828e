"""What stands in for a GPU when handlers are tested: FakeHip, a HIP that writes down what it is asked, and a caller."""
