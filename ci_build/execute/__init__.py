"""A plan is carried out here: inputs become finished wheels, and these a set that appears in its folder as a whole."""
