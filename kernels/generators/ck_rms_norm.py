"""AITER's generator of CK's RMSNorm, and a function that chooses among those instances alone that are kept.

Called as `ck_rms_norm.py GENERATOR FOLDER KEEP`: writes all that the generator writes, then its dispatcher anew. The
dispatcher as it comes refers to all 1,360 instances, so that none could be left out.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any


def main(generator: str, folder: str, keep: str) -> None:
    """Write every file of the generator, with a dispatcher for the instances whose file name matches `keep`."""
    spec = importlib.util.spec_from_file_location("rmsnorm_generator", generator)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    class Kept(module.rmsnorm_fwd_codegen):  # type: ignore[misc]
        def get_blobs(self) -> list[Any]:
            return [blob for blob in super().get_blobs() if re.fullmatch(keep, f"{blob.name}.cpp")]

    module.rmsnorm_fwd_codegen(folder, None).gen_blobs()
    kept = Kept(folder, None)
    # Of a single row length the generator writes a condition without words.
    text = kept.content_api.replace("if  {", "if (true) {")
    Path(folder, f"{kept.name_api}.cpp").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
