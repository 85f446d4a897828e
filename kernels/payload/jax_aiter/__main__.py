"""python -m jax_aiter [bench]: print `jax_aiter.info()` as JSON, or measure products and write the choice table."""

import json
import sys

from jax_aiter import info

if __name__ == "__main__":
    if sys.argv[1:2] == ["bench"]:
        # Only here, because it imports every product.
        from jax_aiter._bench import main

        sys.exit(main(sys.argv[2:]))
    if sys.argv[1:]:
        sys.exit(f"python -m jax_aiter: unknown argument {sys.argv[1]!r}. Use none, or `bench`.")
    json.dump(info(), sys.stdout, indent=2)
    sys.stdout.write("\n")
