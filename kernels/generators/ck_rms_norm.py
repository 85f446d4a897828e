"""Driver of AITER's generator of CK RMSNorm that restricts the instances.

Called as `ck_rms_norm.py GENERATOR FOLDER KEEP INSTANCES`. The original dispatcher
refers to all 1,360 instances, so all of them would have to be compiled; the new
dispatcher refers to the kept instances only.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any


def main(
    generator: str,
    folder: str,
    keep: str,
    instances: str,
) -> None:
    """Write every file of the generator, with a dispatcher for the kept instances.

    Args:
        keep: regular expression that matches whole file names.
        instances: regular expression; the files of instances whose name contains no
            match are removed.
    """
    spec = importlib.util.spec_from_file_location("rmsnorm_generator", generator)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    class Kept(module.rmsnorm_fwd_codegen):  # type: ignore[misc]
        def get_blobs(self) -> list[Any]:
            blobs = [
                blob for blob in super().get_blobs() if re.search(instances, blob.name)
            ]
            return [blob for blob in blobs if re.fullmatch(keep, f"{blob.name}.cpp")]

    whole = module.rmsnorm_fwd_codegen(folder, None)
    whole.gen_blobs()
    for blob in whole.get_blobs():
        if not re.search(instances, blob.name):
            Path(folder, f"{blob.name}.cpp").unlink()
    kept = Kept(folder, None)
    # If only one row length remains, the generator writes an empty condition.
    text = kept.content_api.replace("if  {", "if (true) {")
    Path(folder, f"{kept.name_api}.cpp").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
