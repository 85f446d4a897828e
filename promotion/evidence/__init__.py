"""Evidence, signatures, attestations and test results."""
