"""AITER's generator of CK's RMSNorm, and a function that chooses among those instances alone that are kept.

Called as `ck_rms_norm.py GENERATOR FOLDER KEEP INSTANCES`: writes all that the generator writes, then its dispatcher
anew. The dispatcher as it comes refers to all 1,360 instances, so that none could be left out.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any


def main(generator: str, folder: str, keep: str, instances: str) -> None:
    """Write every file of the generator, with a dispatcher for the instances that are kept.

    Args:
        keep: that their file names match as a whole.
        instances: that their names match somewhere; files of others are removed.
    """
    spec = importlib.util.spec_from_file_location("rmsnorm_generator", generator)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    class Kept(module.rmsnorm_fwd_codegen):  # type: ignore[misc]
        def get_blobs(self) -> list[Any]:
            wanted = [blob for blob in super().get_blobs() if re.search(instances, blob.name)]
            return [blob for blob in wanted if re.fullmatch(keep, f"{blob.name}.cpp")]

    whole = module.rmsnorm_fwd_codegen(folder, None)
    whole.gen_blobs()
    for blob in whole.get_blobs():
        if not re.search(instances, blob.name):
            Path(folder, f"{blob.name}.cpp").unlink()
    kept = Kept(folder, None)
    # Of a single row length the generator writes a condition without words.
    text = kept.content_api.replace("if  {", "if (true) {")
    Path(folder, f"{kept.name_api}.cpp").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
