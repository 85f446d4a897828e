"""Stand-in for setuptools; see `build_meta`."""
