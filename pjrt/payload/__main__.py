"""Print the problems of this machine: `python -m jax_plugins.xla_rocm7`."""

from __future__ import annotations

import sys

from ._doctor import main

if __name__ == "__main__":
    sys.exit(main())
