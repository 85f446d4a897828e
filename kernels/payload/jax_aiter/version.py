"""Version of this package; kernels/CHANGELOG.md lists its changes.

The version is independent of JAX. The build of a wheel adds a local part, such as
+gfx942, for targets other than the default ones.
"""

__version__ = "2.0.0"
