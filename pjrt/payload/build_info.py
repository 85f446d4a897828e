"""Build information of this wheel, from `build_info.json`.

`DATA` has all fields, such as `members`: path, size, sha256, targets and needed libraries of
every native library; `inputs` and `sources`: files and commits that it was made from; `tools`
and `compression`: versions of the tools that made it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FILE = Path(__file__).with_name("build_info.json")
try:
    DATA: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
except (OSError, ValueError) as error:
    raise ImportError(
        f"{_FILE} cannot be read ({error}); install the wheel again."
    ) from error

VERSION: str = DATA["version"]
