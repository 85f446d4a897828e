"""AITER's generator of CK's attention, for those instances alone whose name matches a regular expression.

Called as `ck_mha.py GENERATOR INSTANCES ARGUMENT...`. The generator asks fnmatch about the name of each instance, for
its own filter, which cannot say "this and that"; so whatever it asks about has to match INSTANCES somewhere as well.
What chooses among the instances then knows no others.
"""

from __future__ import annotations

import fnmatch
import re
import runpy
import sys
from pathlib import Path


def main(generator: str, instances: str, *arguments: str) -> None:
    """Run the generator with these arguments, as Python would."""
    matches, wanted = fnmatch.fnmatch, re.compile(instances)

    def both(name: str, pattern: str) -> bool:
        return bool(wanted.search(name)) and matches(name, pattern)

    fnmatch.fnmatch = both  # type: ignore[assignment]  # the generator calls it with texts
    sys.argv = [generator, *arguments]
    sys.path[0] = str(Path(generator).parent)
    runpy.run_path(generator, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
