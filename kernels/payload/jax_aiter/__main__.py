"""python -m jax_aiter: print `jax_aiter.info()` as JSON."""

import json
import sys

from jax_aiter import info

if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(f"python -m jax_aiter: unknown argument {sys.argv[1]!r}.")
    json.dump(info(), sys.stdout, indent=2)
    sys.stdout.write("\n")
