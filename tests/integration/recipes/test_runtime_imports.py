"""Runtime imports are in the runtime lock; imports of tests alone are not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
_SUITES = (
    "gates/suites/",
    "gates/device/plugin/",
    "corpus/programs/",
    "corpus/child.py",
    "gates/code_checks",
)
_CODE = """
import importlib, sys
for name in ("pytest", "_pytest", "hypothesis", "mypy"):
    sys.modules[name] = None
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def test_promotion_imports_without_test_packages() -> None:
    """Skip files that run in another environment, beside jax or pytest."""
    files = sorted(
        path.relative_to(ROOT).as_posix() for path in (ROOT / "promotion").rglob("*.py")
    )
    separate = re.compile("|".join([*_SUITES, r"_child\.py$"]))
    own = [name for name in files if not separate.search(name)]
    names = [
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in own
    ]
    assert "promotion.gates.device.device_run" in names
    done = subprocess.run(
        [sys.executable, "-c", _CODE, *names],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
