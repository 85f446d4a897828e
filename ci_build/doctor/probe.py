"""Description of the Python that runs this module.

Other interpreters run the text of this module, so it must work in any Python 3 and must
not import from this project.
"""

import importlib.util
import json
import os
import platform
import sys
import sysconfig


def describe() -> "dict[str, object]":
    """Return the facts that decide which wheels are compatible, as JSON values."""
    standard = sysconfig.get_path("stdlib")
    return {
        "version": platform.python_version(),
        "implementation": platform.python_implementation(),
        "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        "executable": sys.executable,
        "virtual": sys.prefix != sys.base_prefix,
        "managed": os.path.exists(os.path.join(standard, "EXTERNALLY-MANAGED")),  # noqa: PTH110, PTH118
        "pip": importlib.util.find_spec("pip") is not None,
        "path": [entry for entry in sys.path if os.path.isdir(entry)],  # noqa: PTH112
    }


if __name__ == "__main__":
    print(json.dumps(describe()))  # noqa: T201
