"""Entry point of `python -m ci_build.cli`."""

import sys

from ci_build.cli import run

if __name__ == "__main__":
    sys.exit(run())
