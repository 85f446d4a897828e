"""Driver of AITER's generator of CK attention that restricts the instances to a regular expression.

Called as `ck_mha.py GENERATOR INSTANCES ARGUMENT...`. The generator filters instance
names with fnmatch, which cannot combine conditions, so every fnmatch also requires a
match of INSTANCES. The generated dispatcher then contains only the matching instances.
"""

from __future__ import annotations

import fnmatch
import re
import runpy
import sys
from pathlib import Path


def main(
    generator: str,
    instances: str,
    *arguments: str,
) -> None:
    """Run the generator with these arguments as a main program."""
    matches = fnmatch.fnmatch
    regex = re.compile(instances)

    def both(name: str, pattern: str) -> bool:
        return bool(regex.search(name)) and matches(name, pattern)

    fnmatch.fnmatch = both  # type: ignore[assignment]  # the generator calls it with texts
    sys.argv = [generator, *arguments]
    sys.path[0] = str(Path(generator).parent)
    runpy.run_path(generator, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
